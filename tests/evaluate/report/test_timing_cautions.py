"""Cautions about timings: speed-ups that the accept length does not explain, and rows with few samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmspec.cli.report import show_report
from mmspec.evaluate.report.cautions import cautions
from tests.evaluate.report.kept import failed, sample, written


def run(folder: Path, seconds: float, count: int = 12, **more: object) -> list[str]:
    """The cautions of plain decoding in 2 s beside a method with an accept length of 2."""
    records = [sample("ar", prompt, 2.0) for prompt in range(count)]
    records += [sample("eagle", prompt, seconds, prefill=seconds / 2, passes=5, **more) for prompt in range(count)]
    return [caution for caution in cautions(written(folder, records)) if "zoo CLIP" not in caution]


def test_a_speedup_above_the_accept_length_is_named(tmp_path: Path) -> None:
    (line,) = run(tmp_path, 2.0 / 51)
    assert line.startswith("t2i, T = 1: the speed-up of eagle, 51, is more than 1.25 times its accept length, 2 values")
    assert "measure again on a quiet machine" in line


def test_speedups_that_drafts_explain_have_no_caution(tmp_path: Path) -> None:
    assert run(tmp_path / "below", 1.1) == run(tmp_path / "quarter", 2.0 / 2.5) == []
    assert len(run(tmp_path / "above", 2.0 / 2.6)) == 1


def test_methods_whose_target_passes_are_cheaper_have_no_caution(tmp_path: Path) -> None:
    parts = {"prefill": 0.01, "target": 0.0, "draft": 0.09, "verify": 0.0, "other": 0.0}
    assert run(tmp_path / "drafter", 0.1, parts=parts) == []
    for drafter_passes, warned in ((0, 0), (5, 1)):
        records = [sample("ar", prompt, 2.0, domain="continuous") for prompt in range(12)]
        more = {"domain": "continuous", "drafter_passes": drafter_passes}
        records += [sample("head", prompt, 0.1, prefill=0.05, passes=5, **more) for prompt in range(12)]
        lines = [
            caution
            for caution in cautions(written(tmp_path / str(drafter_passes), records))
            if "speed-up of head" in caution
        ]
        assert len(lines) == warned


def test_rows_with_few_samples_are_named_in_one_line(tmp_path: Path) -> None:
    assert run(tmp_path / "enough", 1.5, 10) == []
    (line,) = run(tmp_path / "few", 1.5, 9)
    assert line.startswith("t2i, T = 1: fewer than 10 samples of plain (9), eagle (9);")
    records = [*(sample("ar", number) for number in range(10)), failed("eagle", 0)]
    # a method without any sample is named among the failures
    assert not [caution for caution in cautions(written(tmp_path / "failed", records)) if "fewer than" in caution]


def test_the_screen_and_the_page_show_the_caution(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    records = [
        sample(name, prompt, seconds, prefill=seconds / 2)
        for prompt in range(12)
        for name, seconds in (("ar", 2.0), ("eagle", 0.1))
    ]
    show_report(written(tmp_path / "run", records), tmp_path / "report", plots=False)
    line = "t2i, T = 1: the speed-up of eagle, 20, is more than 1.25 times its accept length, 1 values per target pass"
    assert f"Warning: {line}" in capsys.readouterr().out
    assert f"- **{line}" in (tmp_path / "report" / "report.md").read_text()

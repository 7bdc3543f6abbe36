"""The tab of runs reads what lies in the server's folder, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec.web.limits import Limits, RefusedRequest
from mmspec.web.pareto import known_runs, plots, rows_of_run
from tests.evaluate.report.kept import grid, written


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "runs"
    written(folder / "one", grid())
    written(folder.parent / "secret", grid(3))
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(folder.parent / "secret")
    return folder


def test_runs_are_listed_by_name(runs: Path, tmp_path: Path) -> None:
    assert "one" in known_runs(runs) and not {"empty", "link"} & set(known_runs(runs))
    assert known_runs(tmp_path / "nothing") == []
    assert known_runs(runs / "one") == ["."]


@pytest.mark.parametrize(
    "name", ["..", "../secret", "one/../../secret", "/etc", "link", "", None, 7, ["one"], "one\0", "empty", "x" * 5000]
)
def test_whatever_is_no_run_of_the_folder_is_refused_in_one_sentence(runs: Path, name: object) -> None:
    with pytest.raises(RefusedRequest) as caught:
        rows_of_run(runs, name, Limits())
    assert str(caught.value).count("expected") == 1 and str(runs) not in str(caught.value)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_run_is_refused_without_the_servers_path(runs: Path) -> None:
    (runs / "torn" / "shards").mkdir(parents=True)
    (runs / "torn" / "shards" / "a.jsonl").write_text("not json\n")
    with pytest.raises(RefusedRequest) as caught:
        rows_of_run(runs, "torn", Limits())
    assert str(runs) not in str(caught.value)


def test_too_many_rows_are_left_to_the_report(runs: Path) -> None:
    with pytest.raises(RefusedRequest, match="use `mmspec report`"):
        rows_of_run(runs, "one", Limits(rows=1))


def test_exact_methods_are_filled_relaxed_hollow_and_plain_decoding_a_star(runs: Path) -> None:
    rows, _ = rows_of_run(runs, "one", Limits())
    drawn = plots(rows)
    laws = re.findall(r'<g class="(plain|exact|relaxed)"', drawn)
    assert {law: laws.count(law) > 0 for law in ("plain", "exact", "relaxed")} == dict.fromkeys(
        ("plain", "exact", "relaxed"), True
    )
    assert laws.count("plain") * 2 == laws.count("exact") + laws.count("relaxed")
    for row in rows:
        assert f"{row['speedup_vs_ar']:.2f} times" in drawn


def test_points_lie_inside_the_plot_and_faster_ones_further_right(runs: Path) -> None:
    rows, _ = rows_of_run(runs, "one", Limits())
    (first, *_) = re.findall(r"<svg.*?</svg>", plots(rows), re.S)
    across = {law: float(x) for law, x in re.findall(r'class="(exact|relaxed)">.*?<circle cx="([\d.]+)"', first)}
    (star,) = re.findall(r'translate\(([\d.]+) [\d.]+\)" d="M0-9', first)
    assert 0 < float(star) < across["exact"] < across["relaxed"] < 520


def test_names_in_a_run_are_escaped(tmp_path: Path) -> None:
    records = [dict(one, title="<script>x</script>") if "title" in one else one for one in grid(3)]
    written(tmp_path / "odd", records)
    rows, _ = rows_of_run(tmp_path, "odd", Limits())
    assert "<script>" not in plots(rows)

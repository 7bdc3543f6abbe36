"""The log that all benches share: what it takes up again, and what it never does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import mmspec
from mmspec.evaluate.base import provenance as fingerprints
from mmspec.evaluate.base.provenance import fingerprint
from mmspec.evaluate.engine.resume_log import BenchLog, log_beside
from mmspec.evaluate.engine.runs import Failure
from mmspec.evaluate.engine.suite import CellGroup, Method, Setting
from mmspec.io.interrupts import Stopped
from mmspec.run.timed_run import TimedRun

SETTING = Setting(batch=2, temperature=0.0, prompts=6, seed=7)
GROUP = CellGroup("b", "m", SETTING, (Method("ar", "plain"),), SETTING.name(), "text")
ABOUT = {"bench": "b", "settings": {"seed": 0}, "code": "0.1.0+a"}


def fail() -> object:
    raise AssertionError("made again")


def test_a_part_is_made_once_and_found_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "bench.part.jsonl"
    first = BenchLog(file, ABOUT)
    assert not file.exists()
    assert first.once({"batch": 1, "t": 0.5}, lambda: [{"x": 1.25}]) == [{"x": 1.25}]
    assert first.once({"t": 0.5, "batch": 1}, fail) == [{"x": 1.25}]
    second, kept = BenchLog(file, dict(reversed(ABOUT.items()))), []
    assert second.once({"batch": 1, "t": 0.5}, fail, lambda: kept.append(1)) == [{"x": 1.25}] and kept == [1]
    assert second.once({"batch": 2, "t": 0.5}, lambda: [], fail) == []
    about, *parts = map(json.loads, file.read_text().splitlines())
    assert about["about"].items() >= ABOUT.items() and [part["part"]["batch"] for part in parts] == [1, 2]
    assert {part["run"] for part in parts} == {about["run"]}


@pytest.mark.parametrize("other", [{"code": "0.1.0+b"}, {"settings": {"seed": 1}}, {"bench": "c"}, {"machine": "else"}])
def test_parts_of_another_run_are_left_alone_and_kept(other: dict, tmp_path: Path) -> None:
    file = tmp_path / "bench.part.jsonl"
    BenchLog(file, ABOUT).once({"batch": 1}, lambda: "mine")
    assert BenchLog(file, ABOUT | other).once({"batch": 1}, lambda: "other") == "other"
    assert BenchLog(file, ABOUT).once({"batch": 1}, fail) == "mine"
    assert BenchLog(file, ABOUT | other).once({"batch": 1}, fail) == "other"


def test_a_line_cut_off_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "bench.part.jsonl"
    BenchLog(file, ABOUT).once({"batch": 1}, lambda: 1)
    file.write_text(file.read_text() + '{"run": "')
    assert BenchLog(file, ABOUT).once({"batch": 2}, lambda: 2) == 2
    log = BenchLog(file, ABOUT)
    assert [log.once({"batch": number}, fail) for number in (1, 2)] == [1, 2]


@pytest.mark.parametrize("line", ['{"step": 1}', "[]", "text", '{"run": "a", "part": {}}'])
def test_another_file_is_refused(line: str, tmp_path: Path) -> None:
    file = tmp_path / "bench.part.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ValueError, match="bench.part.jsonl, line 1: expected .*, got .*; "):
        BenchLog(file, ABOUT)
    assert file.read_text() == line + "\n"


def test_without_a_file_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt) as stop, BenchLog(log_beside(None), ABOUT) as log:
        assert log.once({"batch": 1}, lambda: 1) == 1
        raise KeyboardInterrupt
    assert not isinstance(stop.value, Stopped) and list(tmp_path.iterdir()) == []


def test_an_interrupt_reports_the_saved_parts(tmp_path: Path) -> None:
    file = log_beside(tmp_path / "b.json")
    with pytest.raises(KeyboardInterrupt) as stop, BenchLog(file, ABOUT):
        raise KeyboardInterrupt
    assert not isinstance(stop.value, Stopped)
    with pytest.raises(Stopped, match=r"\(parts: 1\) is kept in .*b.json.part.jsonl"), BenchLog(file, ABOUT) as log:
        log.once({"batch": 1}, lambda: 1)
        raise KeyboardInterrupt


def test_samples_are_found_again_as_they_were_kept(tmp_path: Path) -> None:
    file = tmp_path / "bench.part.jsonl"
    parts = {"prefill": 0.5, "draft": 0.0, "target": 1.0, "verify": 0.0, "other": 0.0}
    run = TimedRun(1.5, ((1, 2), (3,)), 2, 1.0, parts, row_passes=(2, 1), prefill=0.5, more={"blocks": [[1, True]]})
    vectors = TimedRun(1.0, ((b"long", b"b"), (b"c",)), 2, 1.0)
    samples = BenchLog(file, ABOUT).samples(GROUP)
    made = [samples.add("ar", case, 0, 7, one) for case, one in enumerate((run, vectors, Failure("no weights")))]
    assert made[0] == run and made[2] == Failure("no weights")
    assert list(map(len, made[1].output)) == [2, 1] and made[1].tokens == 3
    again = BenchLog(file, ABOUT).samples(GROUP)
    assert [again.find("ar", case, 0) for case in range(3)] == made
    assert again.find("ar", 0, 1) is None is BenchLog(file, ABOUT | {"code": "x"}).samples(GROUP).find("ar", 0, 0)


def test_an_interrupt_within_a_setting_reports_the_saved_requests(tmp_path: Path) -> None:
    file = log_beside(tmp_path / "b.json")
    with pytest.raises(Stopped, match=r"\(requests: 1\) is kept in"), BenchLog(file, ABOUT) as log:
        log.samples(GROUP).add("ar", 0, 0, 0, TimedRun(1.0, ((1,),), 1, 1.0))
        raise KeyboardInterrupt


def test_the_fingerprint_is_of_all_code_and_of_the_folders_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint() == fingerprint() and fingerprint().startswith(f"{mmspec.__version__}+")
    for name in ("package", "saved"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "file").write_text("one")
    found = [fingerprint([tmp_path / "saved"])]
    (tmp_path / "saved" / "inner" / "file").write_text("two")
    found.append(fingerprint([tmp_path / "saved"]))
    shutil.move(tmp_path / "saved" / "inner" / "file", tmp_path / "saved" / "inner" / "other")
    found.append(fingerprint([tmp_path / "saved"]))
    assert len({fingerprint(), *found}) == 4

    monkeypatch.setattr(fingerprints, "_packages", lambda: [tmp_path / "package"])
    before = fingerprint()
    (tmp_path / "package" / "inner" / "file").write_text("two")
    assert fingerprint() != before


def test_the_fingerprint_reaches_every_package() -> None:
    import mmspec.imagegen
    import mmspec.kernels
    import mmspec.vlm

    folders = fingerprints._packages()
    for module in (mmspec, mmspec.imagegen, mmspec.kernels, mmspec.vlm, fingerprints):
        assert any(Path(module.__file__).resolve().is_relative_to(folder) for folder in folders), module

"""A run is the same whoever makes it: killed, resumed, in parts, by one worker or three, by two writers at once."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmspec.evaluate.engine.records import without_times
from mmspec.evaluate.engine.shards import Records, read_run, read_shards
from mmspec.evaluate.engine.task_runners import run_local
from mmspec.evaluate.engine.work import SweepWork, check_engine, run_work
from mmspec.evaluate.report.measures import features
from mmspec.io.files import WriteError
from tests.evaluate.report.kept import header
from tests.evaluate.tiny_run import files, hashes, lasting, plan, run_sweep
from tests.house.tree import ROOT

HEADER = header()
WRITER = """
import sys
from pathlib import Path
from mmspec.evaluate.engine.task_runners import run_local
from mmspec.evaluate.engine.work import SweepWork
from tests.evaluate.report.kept import header
from tests.evaluate.tiny_run import plan
work = SweepWork.of(plan(Path(sys.argv[1]), Path(sys.argv[2]), samples=4))
run_local(work.plan, header(), work.draws(work.known()), 1, lambda text: print(text, flush=True))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def whole(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """A run of one worker, judged too."""
    return run_sweep(plan(made, tmp_path_factory.mktemp("whole")))


def drawn(work: SweepWork, workers: int = 1, engine: str = "local") -> Records:
    """What a work lacks, drawn and not judged."""
    work.plan.folder.mkdir(parents=True, exist_ok=True)
    tasks = work.draws(work.known())
    if tasks:
        check_engine(engine, workers)(work.plan, HEADER, tasks, workers, lambda text: None)
    return work.known()


def test_progress_counts_the_tasks_of_both_stages(made: Path, tmp_path: Path) -> None:
    for part in ((1, 1), (1, 2)):
        work = SweepWork.of(plan(made, tmp_path / f"{part[1]}", part=part))
        finished: list[str] = []
        expected = work.expected_tasks(work.known())
        run_work(work, on_task=finished.append)
        assert len(finished) == expected > len(work._all()) // part[1] and any("scores of" in one for one in finished)
    whole = SweepWork.of(plan(made, tmp_path / "1"))
    assert whole.expected_tasks(whole.known()) == 0


def test_every_cell_has_a_sample_of_every_prompt_with_its_figures(whole: Records) -> None:
    assert len(whole.samples) == 3 * 4 and all(sample["failed"] is None for sample in whole.samples.values())
    assert {sample["of"]["decoding"] for sample in whole.samples.values()} == {"ar", "sjd:window=4", "scd:window=4"}
    for key, sample in whole.samples.items():
        assert (
            sample["exact"]
            and sample["tokens"] == 16
            and sample["time"]["seconds"] > 0
            and (whole.folder / sample["shown"]["file"]).is_file()
        )
        assert (
            sum(count + 1 for count in sample["accepted"]) == sample["tokens"]
            and len(sample["accepted"]) == sample["target_passes"]
        )
        (entry,) = [score for (of, _), score in whole.scores.items() if of == key]
        assert features([entry]).shape == (1, 128) and entry["figures"]["clip_score"] is not None
    assert len(whole.real) == 4


def test_the_header_records_versions_prompts_and_judges(whole: Records) -> None:
    header = whole.headers[0]
    assert header["versions"].keys() >= {"mmspec", "torch"} and header["seed"] == 0 and header["about"]["code"]
    (model,) = header["prompts"]
    assert header["prompts"][model]["count"] == 4 and len(header["prompts"][model]["hash"]) == 16
    assert header["judges"][model]["extractor"] == "zoo CLIP" and len(header["judges"][model]["extractor_hash"]) == 16
    assert whole.models[model]["dtype"] == "float32" and whole.models[model]["device"] == "cpu"


def test_seeds_belong_to_prompts_and_samples_and_to_nobody_else(whole: Records) -> None:
    seeds: dict[str, set[int]] = {}
    for sample in whole.samples.values():
        seeds.setdefault(sample["prompt"], set()).add(sample["seed"])
    assert all(len(found) == 1 for found in seeds.values()) and len(set.union(*seeds.values())) == 4


def test_nothing_is_made_twice_and_a_larger_plan_goes_on(
    made: Path, whole: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    again = run_sweep(plan(made, whole.folder), on_task=told.append)
    assert not told and again.samples == whole.samples
    more = SweepWork.of(plan(made, whole.folder, count=6))
    assert len(more.draws(again)) == 2 and more.missing(again) == 6


@pytest.mark.whole
def test_parts_of_several_folders_merge_by_copying(made: Path, whole: Records, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        drawn(SweepWork.of(plan(made, tmp_path / f"{number}", part=(number, 3))))
    for number in (2, 3):
        for file in (path for path in (tmp_path / f"{number}").rglob("*") if path.is_file()):
            there = tmp_path / "1" / file.relative_to(tmp_path / f"{number}")
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(file.read_bytes())
    merged = run_sweep(plan(made, tmp_path / "1"))
    assert lasting(merged) == lasting(whole)


@pytest.mark.whole
def test_three_workers_match_a_single_worker(made: Path, whole: Records, tmp_path: Path) -> None:
    work = SweepWork.of(plan(made, tmp_path / "three"))
    three = drawn(work, workers=3)
    assert hashes(three) == hashes(whole) and lasting(three)["samples"] == lasting(whole)["samples"]
    assert len(list((tmp_path / "three" / "shards").iterdir())) >= 1


@pytest.mark.whole
def test_ray_matches_a_single_worker(made: Path, whole: Records, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='ray comes with "mmspec[scale]"')
    for workers in (1, 3):
        found = drawn(SweepWork.of(plan(made, tmp_path / f"{workers}")), workers, "ray")
        assert hashes(found) == hashes(whole) and lasting(found)["samples"] == lasting(whole)["samples"]


@pytest.mark.whole
def test_a_run_resumes_after_a_killed_and_a_concurrent_writer(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(made), str(folder)]
    with open(tmp_path / "said", "w") as said:
        writers = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=said) for _ in range(2)]
        victim = wait_for_shard(folder, writers)
        victim.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.wait(timeout=600)
    assert victim.returncode == -signal.SIGKILL and all(
        writer.returncode == 0 for writer in writers if writer is not victim
    )
    # the other one was stopped too, as far as the run can tell: its last lines are gone
    longest = max((folder / "shards").iterdir(), key=lambda file: file.stat().st_size)
    lines = longest.read_bytes().splitlines(keepends=True)
    longest.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:40])
    resumed = drawn(SweepWork.of(plan(made, folder, samples=4)))
    alone = drawn(SweepWork.of(plan(made, tmp_path / "alone", samples=4)))
    assert lasting(resumed)["samples"] == lasting(alone)["samples"] and len(alone.samples) == 48


def wait_for_shard(folder: Path, writers: list[subprocess.Popen]) -> subprocess.Popen:
    """The writer that has first begun, once it has some samples."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        for file in (folder / "shards").glob("*.jsonl") if folder.is_dir() else ():
            if file.read_bytes().count(b"\n") > 4:
                return next(writer for writer in writers if f"-{writer.pid}-" in file.name)
        time.sleep(0.02)
    pytest.fail("no writer began")


@pytest.mark.default_cells("0.5")
@pytest.mark.parametrize("left", [0, 0.2, 0.5, 0.77, 0.999])
def test_a_shard_that_a_kill_has_cut_anywhere_goes_on_to_the_same_run(
    left: float, made: Path, whole: Records, tmp_path: Path
) -> None:
    first = drawn(SweepWork.of(plan(made, tmp_path)))
    (shard,) = (tmp_path / "shards").iterdir()
    content = shard.read_bytes()
    shard.write_bytes(content[: int(len(content) * left)])
    assert len(read_shards(tmp_path, first.headers[0]["run"]).samples) < 12
    resumed = drawn(SweepWork.of(plan(made, tmp_path)))
    assert lasting(resumed)["samples"] == lasting(whole)["samples"]


def test_a_full_disk_reports_one_error_and_the_run_resumes(made: Path, whole: Records, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))  # bytes of any file: some samples, and not all
    try:
        with pytest.raises(WriteError, match=r"expected to write .*shards.*\.jsonl"):
            drawn(SweepWork.of(plan(made, tmp_path)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 0 < len(read_run(tmp_path).samples) < 12
    assert lasting(drawn(SweepWork.of(plan(made, tmp_path))))["samples"] == lasting(whole)["samples"]


def test_another_seed_is_another_run(made: Path, whole: Records) -> None:
    with pytest.raises(ValueError, match="line 1: expected shards of one run"):
        run_sweep(plan(made, whole.folder, seed=1))


def test_comparisons_use_records_without_times(whole: Records) -> None:
    one = next(iter(whole.samples.values()))
    assert "time" in one and "time" not in without_times(one) and "token_hash" in without_times(one)
    assert json.loads(json.dumps(one)) == one and read_run(whole.folder).samples == whole.samples


def test_an_impossible_cell_is_recorded_with_the_reason(made: Path, tmp_path: Path) -> None:
    work = SweepWork.of(plan(made, tmp_path, decodings=("eagle", "sjd:window=4"), rules=("exact", "token"), count=1))
    found = drawn(work)
    failed = {
        (sample["of"]["decoding"], sample["of"]["rule"]): sample["failed"]
        for sample in found.samples.values()
        if sample["failed"]
    }
    assert set(failed) == {("eagle", "exact"), ("eagle", "token")} and len(found.samples) == 5
    assert "expected a model of the zoo, which 'eagle' belongs to" in failed["eagle", "exact"]
    assert not work.draws(found)  # a refusal is an answer


def test_an_unknown_engine_and_no_worker_are_refused() -> None:
    with pytest.raises(ValueError, match="--engine: expected one of local, ray, got 'slurm'"):
        check_engine("slurm", 1)
    with pytest.raises(ValueError, match="--workers: expected at least 1, got 0"):
        check_engine("local", 0)
    assert check_engine("local", 1) is run_local

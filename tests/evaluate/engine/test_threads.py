"""Benches and sweeps compute with the caller's threads, unless `--threads` names a number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.registry import DOMAINS, config_of
from mmspec.evaluate.engine.task_runners import run_local
from mmspec.evaluate.engine.work import SweepWork
from tests.evaluate.report.kept import header
from tests.evaluate.sham.config import Config
from tests.evaluate.sham.domain import DOMAIN
from tests.evaluate.tiny_run import files, plan
from tests.house.tree import ROOT

CALLERS = (1, 3)


@pytest.fixture(params=CALLERS)
def caller(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of threads that the calling program has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("named", [None, 2])
def test_a_bench_computes_with_the_callers_threads_or_those_it_is_given(caller: int, named: int | None) -> None:
    seen = []
    result = bench(DOMAIN, Config(threads=named), on_run=lambda text: seen.append(torch.get_num_threads()))
    assert set(seen) == {named or caller} and result["env"]["threads"] == (named or caller)
    assert torch.get_num_threads() == caller


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_domain_has_threads_of_its_own(domain: str) -> None:
    assert config_of(domain).__dataclass_fields__["threads"].default is None


def test_a_kept_part_is_of_as_many_threads(caller: int, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    bench(DOMAIN, Config(), log=log)
    seen: list[str] = []
    bench(DOMAIN, Config(), log=log, on_part=seen.append)
    assert all(text.endswith("kept") for text in seen)
    torch.set_num_threads(caller + 1)
    bench(DOMAIN, Config(), log=log, on_part=seen.append)
    assert not seen[-1].endswith("kept")


@pytest.mark.default_cells("3-2", "1-None")
@pytest.mark.parametrize("named", [None, 2])
def test_a_sweep_computes_with_the_callers_threads_or_those_it_is_given(
    caller: int, named: int | None, tmp_path: Path
) -> None:
    whole = plan(files(tmp_path), tmp_path / "run", count=1, decodings=("sjd:window=4",))
    work = SweepWork.of(replace(whole, threads=named))
    seen: list[int] = []
    assert work.plan.threads == (named or caller)
    run_local(work.plan, header(), work.draws(work.known()), 1, lambda text: seen.append(torch.get_num_threads()))
    assert seen == [named or caller] and torch.get_num_threads() == caller


def test_a_plan_carries_the_callers_threads_to_worker_processes(caller: int) -> None:
    """A process of its own does not inherit what `torch.set_num_threads` has set."""
    assert SweepPlan(folder=Path("run"), models=("t2i",)).threads == caller


@pytest.mark.whole
def test_the_environments_threads_are_the_callers() -> None:
    code = "from mmspec.evaluate.engine.plan import SweepPlan; print(SweepPlan(folder='r').threads)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "1", done.stderr

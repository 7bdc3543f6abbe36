"""Paired timing: order, seeds, failures and statistics, without a model."""

from __future__ import annotations

import pytest

from mmspec.evaluate.engine.runs import Failure, completed, failures, interleave
from mmspec.evaluate.engine.statistics import middle, paired_ratios, spread
from mmspec.run.timed_run import TimedRun


def run(seconds: float) -> TimedRun:
    return TimedRun(seconds, ((1, 2),), 2, 1.0)


def test_every_method_meets_every_case_in_turn_with_the_case_s_seed() -> None:
    calls = []

    def method(name: str):
        return lambda case, seed: calls.append((name, case, seed)) or run(1.0)

    told = []
    interleave("xy", {name: method(name) for name in "abc"}, repeats=2, seed=7, on_run=told.append)
    warm, timed = calls[:3], calls[3:]
    assert [name for name, case, _ in warm if case == "x"] == ["a", "b", "c"]
    assert ["".join(name for name, *_ in timed[i : i + 3]) for i in (0, 3, 6, 9)] == ["abc", "bca", "bca", "cab"]
    assert {seed for _, case, seed in timed if case == "x"} == {7, 9}
    assert {seed for _, case, seed in timed if case == "y"} == {8, 10}
    assert len(told) == len(calls)


def test_a_failure_is_kept_with_its_reason_and_leaves_the_others_alone() -> None:
    def broken(case: str, seed: int) -> TimedRun:
        if case == "y":
            raise ValueError("no\n  such  picture")
        return run(2.0)

    results = interleave("xy", {"ok": lambda case, seed: run(4.0), "broken": broken})
    assert failures(results["broken"]) == [Failure("ValueError: no such picture")]
    assert len(completed(results["broken"])) == 1
    assert paired_ratios(results["ok"], results["broken"]) == [2.0]


def test_ratios_are_of_seconds_per_token() -> None:
    short, long = TimedRun(1.0, ((1, 2),), 2, 1.0), TimedRun(3.0, ((1, 2, 3, 4), (5, 6)), 4, 1.5)
    assert paired_ratios([[short]], [[long]]) == [pytest.approx(0.5 / 0.5)]
    assert paired_ratios([[long]], [[TimedRun(1.5, ((1, 2, 3),), 3, 1.0)]]) == [pytest.approx(1.0)]


def test_a_mistake_in_a_runner_is_not_swallowed() -> None:
    with pytest.raises(KeyError):
        interleave("x", {"a": lambda case, seed: {}["missing"]})


def test_nothing_to_time_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        interleave("", {"a": lambda case, seed: run(1.0)})


def test_statistics_of_nothing_are_none() -> None:
    assert middle([]) is None and spread([]) is None
    assert middle([1.0, 2.0, 9.0]) == 2.0
    assert spread(list(range(11))) == [1.0, 9.0]

"""Figures of rows from runs made by hand."""

from __future__ import annotations

from mmspec.evaluate.engine.rows import FIELDS, identical, judged_row, parting, passes, timed_row
from mmspec.evaluate.engine.runs import Failure
from mmspec.evaluate.engine.statistics import time_split
from mmspec.evaluate.engine.suite import Method
from mmspec.run.timed_run import TimedRun

PARTS = {"prefill": 0.5, "draft": 0.25, "target": 0.5, "verify": 0.125, "other": 0.125}


def request(passes: tuple[int, ...], length: int = 16) -> TimedRun:
    return TimedRun(
        1.0, ((0,) * length,) * len(passes), max(passes), length * len(passes) / sum(passes), row_passes=passes
    )


def test_rows_of_a_batch_save_the_same_steps_as_alone() -> None:
    alone, together = ([request(counts) for counts in cases] for cases in (((2,), (8,)), ((2, 8),)))
    assert passes(alone) == passes(together) == {"target_passes": 5.0, "accept_length": 3.2}


def test_without_passes_of_each_row_those_of_requests_count() -> None:
    runs = [TimedRun(1.0, ((1,) * 6, (1,) * 6), 3, 2.0), TimedRun(1.0, ((1,) * 6, (1,) * 6), 6, 1.0)]
    assert passes(runs) == {"target_passes": 4.5, "accept_length": 1.5}


def test_a_row_is_timed_against_every_baseline_and_spread_against_the_first() -> None:
    def runs(seconds: float) -> list[list[TimedRun]]:
        return [[TimedRun(seconds, ((1, 2),), 2, 1.0, PARTS)] for _ in range(3)]

    results = {"peer": runs(6.0), "plain": runs(4.0), "own": runs(2.0)}
    row = timed_row(Method("own", "Own"), results, {"hf": "peer", "ar": "plain"}, {"batch": 1, "temperature": 0}, True)
    assert row.keys() >= set(FIELDS)
    assert (row["speedup_vs_hf"], row["speedup_vs_ar"]) == (3.0, 2.0)
    assert (row["spread"], row["spread_vs_ar"]) == ([3.0, 3.0], [2.0, 2.0])
    assert row["identical"] == "3/3" and row["requests"] == 3
    assert row["target_share"] == round(0.5 / 1.5, 4)


def test_parts_that_only_some_domains_have_are_split_over_their_own_rounds() -> None:
    parts = {**PARTS, "target": 0.0, "vae": 0.25, "reward": 0.25}
    row = time_split([TimedRun(1.5, ((1,) * 5,), 1, 5.0, parts, rounds=5)] * 2)
    assert (row["vae_share"], row["reward_ms"], row["target_share"]) == (0.25, 50.0, 0.0)
    assert sum(value for name, value in row.items() if name.endswith("_share")) == 1.0
    only_prompt = TimedRun(1.5, ((1,),), 1, 1.0, PARTS)
    assert time_split([only_prompt])["draft_share"] is None and "vae_share" not in time_split([only_prompt])


def test_a_method_that_failed_has_its_reason_and_no_figures() -> None:
    results = {"ar": [[TimedRun(1.0, ((1,),), 1, 1.0)]], "own": [[Failure("ValueError: no")]]}
    row = timed_row(Method("own", "Own"), results, {"ar": "ar"}, {}, True)
    assert row["failed"] == "ValueError: no" and row["failed_requests"] == 1
    assert row["exact"] is None and row["seconds"] is None and row["identical"] is None


def test_a_tie_is_a_first_difference_at_equal_preference() -> None:
    plain = [[TimedRun(1.0, ((1, 2, 3), (4, 5, 6)), 3, 1.0)]] * 2
    own = [[TimedRun(1.0, ((1, 9, 9), (4, 5, 6)), 3, 1.0)], [TimedRun(1.0, ((1, 2, 9), (9, 5, 6)), 3, 1.0)]]
    asked = []

    def parted(near: dict[tuple[int, int], float], tie: float | None = None) -> tuple[int, float | None]:
        def margins(case: int):
            asked.append(case)
            return lambda row, place, other: near.get((row, place), 1.0) if other == 9 else -1.0

        return tuple(parting(plain, own, margins, tie).values())

    assert identical(plain, own) == "0/2"
    assert parted({(0, 1): 0.0}) == (1, 1.0) and asked == [0, 1]
    assert parted({(0, 1): 0.0, (0, 2): 0.0, (1, 0): 0.0}) == (2, 0.0)
    assert parted({(0, 1): 0.3, (0, 2): 0.1, (1, 0): 0.2}) == (0, 0.3)
    assert parted({(0, 1): 0.3, (0, 2): 0.1, (1, 0): 0.2}, tie=0.25) == (1, 0.3)
    assert parted({(0, 2): 0.0}) == (0, 1.0)  # the other row of the batch differs where there is no tie
    asked.clear()
    assert parting(plain, plain, lambda case: asked.append(case)) == {"ties": 0, "margin": None} and asked == []


def test_a_text_that_ends_where_the_other_goes_on_is_no_tie() -> None:
    plain, own = [[TimedRun(1.0, ((1, 2, 3),), 3, 1.0)]], [[TimedRun(1.0, ((1, 2),), 3, 1.0)]]
    for one, other in ((plain, own), (own, plain)):
        assert parting(one, other, lambda case: lambda row, place, value: 0.0) == {"ties": 0, "margin": None}


def test_a_row_may_name_the_row_whose_output_it_must_give() -> None:
    results = {key: [[TimedRun(1.0, ((value,),), 1, 1.0)]] for key, value in {"ar": 1, "strict": 2, "own": 2}.items()}
    rows = [timed_row(Method("own", "Own", like=like), results, {"ar": "ar"}, {}, True) for like in ("", "strict")]
    assert [row["identical"] for row in rows] == ["0/1", "1/1"]


def test_a_judgement_that_fails_is_a_row_with_the_reason() -> None:
    class Plain:
        row = {"top1_probability": 0.5}

        def judge(self, method: Method) -> dict:
            raise ImportError("no   such module")

    row = judged_row(Method("own", "Own"), Plain(), {"batch": 1})
    assert row["failed"] == "ImportError: no such module" and row["failed_requests"] == 1
    assert row["top1_probability"] == 0.5 and row["exact"] is None

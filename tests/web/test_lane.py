"""A lane's time is its own work and nothing else, and it ends where it should."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from mmspec.web.lanes import lane as lanes
from mmspec.web.lanes.lane import WARM_ROUNDS, Lane, run_lane, warm_up

STEP = 0.004


class Request:
    """As a `Decoding`: `rounds` rounds of STEP seconds."""

    def __init__(self, rounds: int, error: str | None = None):
        self.left, self.done, self.error = rounds, 0, error
        self.target = SimpleNamespace(errors={})
        self.stats = SimpleNamespace(accepted=[], prefill_s=STEP)

    def step(self) -> bool:
        time.sleep(STEP)
        self.done += 1
        self.stats.accepted.append([self.done % 2])
        if self.error and self.done == 2:
            self.target.errors = {0: f"row 0: {self.error}"}
            return False
        return self.done < self.left


def note(run: Request) -> tuple[dict, int]:
    return {}, lanes.last_accepted(run)


def test_time_between_rounds_is_not_counted_for_the_lane() -> None:
    lane = Lane("plain")
    for _ in run_lane(lane, lambda: Request(5), note, 10):
        time.sleep(5 * STEP)
    assert lane.finished and len(lane.rounds) == 5
    assert 5 * STEP <= lane.seconds < 5 * STEP + 4 * STEP
    assert lane.decode_seconds == pytest.approx(lane.seconds - STEP)


def test_moments_of_rounds_grow_up_to_the_lanes_seconds() -> None:
    lane = Lane("plain")
    for _ in run_lane(lane, lambda: Request(6), note, 10):
        pass
    moments = [round_.seconds for round_ in lane.rounds]
    assert moments == sorted(moments) and moments[-1] == lane.seconds and moments[0] >= STEP
    assert [round_.accepted for round_ in lane.rounds] == [1, 0, 1, 0, 1, 0]


def test_a_lane_that_takes_too_long_stops_behind_its_round_and_says_so() -> None:
    lane = Lane("plain")
    for _ in run_lane(lane, lambda: Request(1000), note, 4 * STEP):
        pass
    assert not lane.finished and "expected to be done within" in lane.stopped
    assert 3 <= len(lane.rounds) <= 6


def test_a_row_that_fails_ends_the_lane_with_its_sentence() -> None:
    lane = Lane("plain")
    for _ in run_lane(lane, lambda: Request(9, "expected finite logits, got NaN"), note, 10):
        pass
    assert lane.stopped == "expected finite logits, got NaN" and not lane.finished and len(lane.rounds) == 2


def test_a_reader_that_goes_away_ends_the_work() -> None:
    made = []
    rounds = run_lane(Lane("plain"), lambda: made.append(Request(1000)) or made[0], note, 10)
    next(rounds), next(rounds)
    rounds.close()
    assert made[0].done == 2


def test_warming_up_runs_a_few_rounds_and_no_more() -> None:
    long, short = Request(100), Request(2)
    warm_up(lambda: long), warm_up(lambda: short)
    assert (long.done, short.done) == (WARM_ROUNDS, 2)

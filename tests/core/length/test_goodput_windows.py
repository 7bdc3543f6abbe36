"""Goodput over windows, whose values are kept the more often the longer they are, on a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mmspec.core.length.controls import doubling_lengths
from mmspec.core.length.goodput import Goodput
from mmspec.core.round.draft import Draft
from tests.core.length.test_goodput import Always, Answer, Script, Scripted, World, run

PICTURE, WINDOW = 256, 63
Power = Callable[[int], float]


class Picture(Answer):
    """A target whose rows all have PICTURE values; a round of n drafts yields about (n + 1) ** power, by row."""

    def __init__(self, world: World, name: int, power: Power, batch: int = 1):
        super().__init__(world, name, PICTURE, None, batch)
        self.power, self.total = power, PICTURE

    def _path(self, row: int, count: int) -> list[int]:
        mean = (count + 1) ** self.power(row) - 1
        chance = random.Random(str((self.name, row, self.emitted[row])))
        kept = 0 if mean <= 0 else min(int(chance.expovariate(1 / (mean + 0.5))), count)
        return list(range(kept + 1))


class Window(Script):
    settling, lengths = 3, doubling_lengths(WINDOW)

    def __init__(self, drafter: Scripted):
        super().__init__(drafter)
        self.deepest = WINDOW


class Windows(Scripted):
    def open_without_prefill(self, target: Answer) -> Window:
        return Window(self)


def world(**costs: float) -> World:
    return World(lambda depth: 0.0, prompt=0.0, catch=0.0, fixed=0.02, step=0.0, **costs)


def pictures(made: World, drafter: object, power: Power, count: int = 12, batch: int = 1) -> tuple[float, list[int]]:
    """Seconds of all of them, and how much each round drafted."""
    began, drafted = made.now, []
    for name in range(count):
        drafted += run(Picture(made, name, power, batch), drafter).drafted
    return made.now - began, drafted


def plain(made: World, power: Power, **options) -> float:
    return pictures(made, Always(Windows(made), 0), power, **options)[0]


@pytest.mark.parametrize("verify, longest", ((0.002, 63), (0.05, 15), (0.2, 3)))
def test_windows_become_as_long_as_pays(verify: float, longest: int) -> None:
    def half(row: int) -> float:
        return 0.55

    fixed = {
        n: pictures(made := world(verify=verify), Always(Windows(made), n), half)[0] for n in doubling_lengths(WINDOW)
    }
    made = world(verify=verify)
    seconds, drafted = pictures(made, Goodput(Windows(made), clock=made.clock), half)
    assert seconds <= 1.1 * min(fixed.values()) < plain(world(verify=verify), half)
    late = drafted[len(drafted) // 2 :]
    assert sum(n in (longest // 2, longest, 2 * longest + 1) for n in late) > 0.7 * len(late), drafted


@pytest.mark.parametrize("verify, power", ((0.8, 0.5), (0.3, 0.05)))
def test_windows_that_do_not_pay_cost_next_to_nothing(verify: float, power: float) -> None:
    made = world(verify=verify)
    seconds, drafted = pictures(made, Goodput(Windows(made), clock=made.clock), lambda row: power)
    assert seconds <= 1.03 * plain(world(verify=verify), lambda row: power)
    assert sum(map(bool, drafted)) < 0.05 * len(drafted)


def test_the_slowest_row_decides_whether_a_batch_drafts() -> None:
    def mixed(row: int) -> float:
        return 0.05 if row == 0 else 0.7

    made = world(verify=0.2)
    seconds, drafted = pictures(made, Goodput(Windows(made), clock=made.clock), mixed, batch=4)
    assert seconds <= 1.03 * plain(world(verify=0.2), mixed, batch=4)
    assert sum(map(bool, drafted)) < 0.1 * len(drafted)


def test_progress_is_measured_by_the_last_of_all_rows() -> None:
    """A row that was last and leaps ahead leaves another behind: the leaps of last rows are longer than what is gained."""
    made = world(verify=0.001)
    control = Goodput(Windows(made), clock=made.clock)
    _, drafted = pictures(made, control, lambda row: 0.4, count=20, batch=8)
    (known,) = control.summary()
    most = max(known["rounds"], key=lambda n: known["rounds"][n] * (n > 0))
    assert known["rounds"][most] > 0.6 * len(drafted)
    gained = 20 * PICTURE / len(drafted)  # values of the last row in a round
    assert known["accepted"][most] == pytest.approx(gained, rel=0.15)


class Ragged(Picture):
    """Rows that stand apart cost a fifth more."""

    def judge(self, draft: Draft) -> None:
        running = {n for n, alive in zip(self.emitted, self.live, strict=True) if alive}
        self.world.take(0.2 * self.world.plain * (len(running) > 1))
        super().judge(draft)


def test_rows_that_are_driven_apart_are_so_near_the_end_where_nothing_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.length.test_goodput_windows.Picture", Ragged)
    # a window of 3 makes 1.2 rounds' values in 1.26 rounds' time: it gains beside rounds of rows that stand apart alone
    asked = dict(count=30, batch=8)
    made = world(verify=0.08)
    seconds, drafted = pictures(made, Goodput(Windows(made), clock=made.clock), lambda row: 0.25, **asked)
    assert seconds <= 1.02 * plain(world(verify=0.08), lambda row: 0.25, **asked)
    assert sum(map(bool, drafted)) < 0.05 * len(drafted)


def test_a_window_stays_until_it_has_settled() -> None:
    made = world(verify=0.01)
    _, drafted = pictures(made, Goodput(Windows(made), clock=made.clock), lambda row: 0.5, count=2)
    runs = [1]
    for before, after in zip(drafted, drafted[1:], strict=False):
        runs = [*runs[:-1], runs[-1] + 1] if after == before else [*runs, 1]
    changed = [length for length, first in zip(runs, _firsts(drafted), strict=True) if first]
    # the end of a picture cuts one short
    assert sum(length > Window.settling for length in changed) >= len(changed) - 2


def _firsts(drafted: list[int]) -> list[int]:
    return [n for place, n in enumerate(drafted) if place == 0 or drafted[place - 1] != n]


def test_guided_pictures_are_learned_apart() -> None:
    made = world(verify=0.01)
    control = Goodput(Windows(made), clock=made.clock)
    for copies in (1, 2):
        target = Picture(made, copies, lambda row: 0.5)
        target.copies = copies
        run(target, control)
    assert [kind["branches"] for kind in control.summary()] == [1, 2]
    assert control.summary()[0]["accepted"].keys() <= set(doubling_lengths(WINDOW))


def test_lengths_double() -> None:
    assert (
        doubling_lengths(63) == (1, 3, 7, 15, 31, 63)
        and doubling_lengths(20) == (1, 3, 7, 15, 20)
        and doubling_lengths(1) == (1,)
    )

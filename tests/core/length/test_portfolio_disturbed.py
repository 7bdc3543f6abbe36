"""The controller beside a busy neighbour: a few delayed passes do not end drafting, and drafts that do not pay cost little."""

from __future__ import annotations

import random

import pytest

from mmspec.core.length.draft_estimates import DrawCost, RequestAcceptance
from mmspec.core.length.pass_costs import PassCosts
from mmspec.core.length.portfolio import GoodputPortfolio
from mmspec.core.length.round_estimates import RoundCosts
from tests.core.length.replayed import BF16, FP32, Copying, Guessing, Machine, Replay, decode
from tests.core.length.test_portfolio import prose

SEEDS, LENGTH, TAIL = range(60), 400, 40
# curve, chance that a guess is right, cost of a guess in plain passes
PAYING = {"fp32": (FP32, 0.65, 0.05), "bf16": (BF16, 0.6, 0.15), "long": (FP32, 0.8, 0.02)}
NOT_PAYING = {"often wrong": (FP32, 0.05, 0.05), "bf16": (BF16, 0.05, 0.05), "dear": (FP32, 0.3, 0.15)}


class Disturbed(Machine):
    """A machine whose passes and drafts take a random 1 to 4 times as long: half of them, or in bursts.

    `calm` is the time without the neighbour. `late` delays the first draft and the first wide passes much more.
    """

    def __init__(self, curve: dict[int, float], seed: int, bursts: bool = False, late: float = 0.0):
        super().__init__(curve, rng=random.Random(seed))
        self.bursts, self.late, self.calm, self.is_busy = bursts, late, 0.0, False

    def take(self, seconds: float) -> None:
        if not self.bursts or self.rng.random() < 0.15:
            self.is_busy = self.rng.random() < 0.5
        factor = self.rng.uniform(1, 4) if self.is_busy else 1.0
        if self.late and seconds not in (1.0, 0.0):
            factor, self.late = self.late, 0.0
        self.calm += seconds
        self.now += seconds * factor * self.rng.lognormvariate(0, self.noise)


class Agreeing(Replay):
    """A target whose processes agree on numbers, as every target of text does."""

    def agreed(self, number: int) -> int:
        return number


def best_fixed(curve: dict[int, float], share: float, step: float) -> float:
    """The gain of the best chain of a fixed length on a calm machine, passes padded by up to three nodes."""
    machine, gains = Machine(curve), [1.0]
    for length in range(1, 9):
        cost = min(machine.cost(nodes) for nodes in range(length + 1, length + 4)) + step * length
        gains.append(sum(share**level for level in range(length + 1)) / cost)
    return max(gains)


def answered(case: tuple, seed: int, **noise: float) -> tuple[list[int], float]:
    """The nodes of each round of a first answer, and its calm time in plain passes of a plain answer."""
    curve, share, step = case
    machine = Disturbed(curve, seed, **noise)
    control = GoodputPortfolio([Guessing(machine, step=step)], clock=machine.clock)
    nodes = decode(Agreeing(machine, PassCosts(), *prose(seed, share, LENGTH)), control)
    return nodes, machine.calm / (LENGTH - 1)


def drafts_at_last(nodes: list[int]) -> bool:
    return sum(count > 1 for count in nodes[-TAIL:]) > TAIL / 2


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("bursts", (False, True), ids=("single", "bursts"))
@pytest.mark.parametrize("name", PAYING)
def test_it_drafts_at_last_where_drafting_pays(name: str, bursts: bool) -> None:
    assert best_fixed(*PAYING[name]) >= 1.3
    drafting = sum(drafts_at_last(answered(PAYING[name], seed, bursts=bursts)[0]) for seed in SEEDS)
    assert drafting >= 0.95 * len(SEEDS), drafting / len(SEEDS)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("bursts", (False, True), ids=("single", "bursts"))
@pytest.mark.parametrize("name", NOT_PAYING)
def test_it_stays_plain_where_drafting_does_not_pay(name: str, bursts: bool) -> None:
    assert best_fixed(*NOT_PAYING[name]) < 1.02
    spent = [answered(NOT_PAYING[name], seed, bursts=bursts)[1] for seed in SEEDS]
    limit = 1.06 if name == "dear" else 1.05  # its first level is not far from plain decoding, so noise decides more
    assert sum(spent) / len(spent) <= limit, sum(spent) / len(spent)


def test_a_first_draft_that_is_twenty_times_late_costs_a_few_rounds() -> None:
    lengths = [len(answered(PAYING["long"], seed, late=20.0)[0]) for seed in SEEDS]
    usual = [len(answered(PAYING["long"], seed)[0]) for seed in SEEDS]
    assert sum(lengths) < 1.1 * sum(usual)


def test_a_probe_ends_where_the_target_agrees_on_choices() -> None:
    machine = Machine(FP32)
    control = GoodputPortfolio([Guessing(machine, step=0.15)], clock=machine.clock)
    nodes = decode(Agreeing(machine, PassCosts(), *prose(0, 0.3, 400)), control)
    assert sum(count > 1 for count in nodes) < 40


def test_a_single_late_comparison_rules_out_no_width() -> None:
    costs = PassCosts()
    for width, seconds in ((1, 1.0), (1, 1.0), (5, 20.0), (1, 1.0)):
        costs.add(width, seconds)
    assert costs.cost(5) < 2.5 and costs.cost(8) < 4
    costs.add(5, 1.6)
    assert costs.curve()[5] == pytest.approx(1.6, rel=0.01)


def test_a_repeat_that_is_far_faster_replaces_the_late_round_before_it() -> None:
    costs = RoundCosts()
    for length, seconds in ((0, 1.0), (4, 20.0), (4, 1.5), (0, 1.0)):
        costs.add(length, seconds)
    assert costs.seconds(4) / costs.seconds(0) == pytest.approx(1.5, rel=0.05)


def test_a_late_first_draft_does_not_set_the_cost_of_drafting() -> None:
    late, usual = DrawCost(), DrawCost()
    late.add(4, 5.0)
    usual.add(4, 0.2)
    assert late.of(4) < 0.5 and usual.of(4) == pytest.approx(0.2, abs=0.06)
    for _ in range(6):
        usual.add(4, 2.0)  # a drafter that is slow indeed is known as slow after a few drafts
    assert usual.of(4) > 1.2


def test_the_prior_of_acceptance_is_weak() -> None:
    estimates = GoodputPortfolio([Copying()]).estimates(Replay(Machine(FP32), PassCosts(), *prose(0)))
    first = RequestAcceptance(estimates.drafters[0], 4)
    before = first.tokens("match")[4]
    for _ in range(4):
        first.add("match", 0, 4)
    assert 2.0 < before < 3.0 and first.tokens("match")[4] < 1.5

"""How near to the target relaxed rules stay: against what no law behind a rejection could better, by enumeration."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import enumerate_rule, joint_law, random_tables
from mmspec.core.round.rules import RecursiveRejection, Rule, TargetMatch, TokenWise
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.imagegen import GSD, CoolSD, Lantern, LanternPlus, RunJoint
from tests.imagegen.rules.cases import CHAIN, TREE, WITHOUT, case, table

SIZE, SEEDS = 6, range(20)
NEAREST = {
    "lantern": Lantern(table(SIZE), delta=0.3),
    "lantern++": LanternPlus(table(SIZE), SIZE, 2.0),
    "coolsd": CoolSD(1.5),
    "coolsd, floor 0": CoolSD(1.5, floor=0.0),
    "runjoint": RunJoint(),
}


@dataclass(slots=True)
class Step:
    """What one value of a round is: away, its total variation from the target; least, what no residual could better;
    accepted: the chance that a draft stands, and `exactly`, the exact rule's."""

    away: float
    least: float
    accepted: float
    exactly: float


def first(rule: Rule, seed: int, tree: Tree | None = None) -> Step:
    """The first value."""
    p, q = random_tables(SIZE, 2, seed), random_tables(SIZE, 1, seed + 100)
    judged, target = enumerate_rule(rule, tree or chain(1), p, q), p[0][0]
    kept = torch.zeros(SIZE, dtype=torch.float64)
    kept.index_put_((judged.drafts.value[:, 1:],), judged.reach[:, 1:], accumulate=True)
    law = joint_law(judged, p)[0].view(SIZE, -1).sum(-1)
    return of(law, kept, target, float(torch.minimum(target, q[0][0]).sum()))


def second(rule: Rule, seed: int) -> list[Step]:
    """The second value of a chain, behind each first value that stands."""
    p, q = random_tables(SIZE, 3, seed), random_tables(SIZE, 2, seed + 100)
    judged = enumerate_rule(rule, chain(2), p, q)
    threshold, steps = judged.weights.threshold.double(), []
    for x in range(SIZE):
        stands = judged.drafts.chance * threshold[:, 1] * (judged.drafts.value[:, 1] == x)
        kept = torch.zeros(SIZE, dtype=torch.float64).index_add_(0, judged.drafts.value[:, 2], stands * threshold[:, 2])
        kept = kept / stands.sum()
        rest = (p[1][x] - q[1][x]).clamp_min(0)
        steps.append(of(kept + (1 - kept.sum()) * rest / rest.sum(), kept, p[1][x], 0.0))
    return steps


def of(law: Tensor, kept: Tensor, target: Tensor, exactly: float) -> Step:
    away = float((law - target).abs().sum() / 2)
    return Step(away, float((kept - target).clamp_min(0).sum()), float(kept.sum()), exactly)


@pytest.mark.parametrize("name", NEAREST)
def test_nothing_behind_a_single_draft_could_be_nearer(name: str) -> None:
    steps = [first(NEAREST[name], seed) for seed in SEEDS]
    assert all(step.away == pytest.approx(step.least, abs=1e-7) for step in steps)
    assert max(step.away for step in steps) > 0.01 or name == "runjoint"  # which judges one value token-wise


@pytest.mark.parametrize("group", (2, 3, 7))
def test_gsd_is_nearest_where_it_accepts_as_often_as_the_exact_rule(group: int) -> None:
    steps = [first(GSD(group, delta_p=1.0), seed) for seed in SEEDS]
    often = [step for step in steps if step.accepted >= step.exactly]
    assert often and all(step.away == pytest.approx(step.least, abs=1e-7) for step in often)
    if group == 2:  # x and a less likely one
        seldom = [step for step in steps if step.accepted < step.exactly]
        assert seldom and max(step.away - step.least for step in seldom) > 0.01


def test_over_siblings_another_residual_may_be_nearer() -> None:
    steps = [first(NEAREST["coolsd"], seed, static_tree([0, 0, 0])) for seed in range(60)]
    gaps = [step.away - step.least for step in steps]
    assert min(gaps) > -1e-7 and 1e-3 < max(gaps) < 0.01  # seldom, and by little


def test_run_joint_is_nearest_for_the_first_value_alone() -> None:
    steps = {name: [step for seed in SEEDS for step in second(NEAREST[name], seed)] for name in ("runjoint", "coolsd")}
    assert max(step.away - step.least for step in steps["runjoint"]) > 0.05
    assert all(step.away == pytest.approx(step.least, abs=1e-6) for step in steps["coolsd"])


@pytest.mark.parametrize("how", (WITHOUT, "deterministic"))
@pytest.mark.parametrize("tree", (CHAIN, TREE), ids=("chain", "tree"))
def test_only_gsd_has_thresholds_below_the_exact_thresholds(tree: Tree, how: str) -> None:
    draft, evidence = case(tree, how, rows=256)
    exact = TargetMatch() if how == "deterministic" else RecursiveRejection() if tree.max_rank else TokenWise()
    least = exact.weigh(evidence, draft).threshold[:, 1:]
    rules = {"lantern": Lantern(table(40), delta=0.3), "lantern++": LanternPlus(table(40), 40, 2.0), "coolsd": CoolSD()}
    if not tree.max_rank:
        rules["runjoint"] = RunJoint()
    for name, rule in rules.items():
        found = rule.weigh(evidence, draft).threshold[:, 1:]
        # behind a value that is never accepted nothing is reached
        reached = found.cumprod(1).roll(1, 1) > 0 if name == "runjoint" else torch.ones_like(found, dtype=torch.bool)
        reached[:, 0] = True
        assert (found >= least - 1e-6)[reached].all(), name
    below = (GSD().weigh(evidence, draft).threshold[:, 1:] < least - 1e-6).double().mean()
    assert 0.05 < below < 0.5 if how == WITHOUT else below == 0

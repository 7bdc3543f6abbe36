"""What LANTERN borrows, how far it may lead from the target, and what follows a rejection."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import enumerate_rule, inexactness, joint_law, random_tables, total_variation
from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.rules import Rule
from mmspec.core.round.tree import chain, static_tree
from mmspec.imagegen.rules.lantern import Lantern, LanternPlus, nearest_codes
from tests.core.round.rules.drafting import Fixed, round_of
from tests.imagegen.rules.cases import WITHOUT, codebook, table

SIZE = 6


def emitted(rule: Rule, p: list[Tensor], q: list[Tensor], tree: object = None) -> Tensor:
    """The law of the first value that a round emits, float64 [V]."""
    found = joint_law(enumerate_rule(rule, tree or chain(1), p, q), p)
    return found.view(p[0].shape[-1], -1).sum(-1)


def borrowed(near: Tensor, p: Tensor, code: int, k: int, budget: float) -> float:
    total = 0.0
    for other in near[code, :k].tolist():
        if total + float(p[other]) > budget:
            break
        total += float(p[other])
    return total


@pytest.mark.parametrize("normalise", (False, True))
def test_neighbours_are_the_nearest_others(normalise: bool) -> None:
    book = codebook(600) * torch.rand(600, 1)
    near = nearest_codes(book, 5, normalise)
    code = torch.nn.functional.normalize(book.double(), dim=-1) if normalise else book.double()
    distance = torch.cdist(code, code, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(torch.inf)
    assert torch.equal(near, distance.argsort(-1)[:, :5]) and near.dtype == torch.long
    for wrong in (0, 600):
        with pytest.raises(ValueError, match="expected 1 to 599 neighbours of 600 codes"):
            nearest_codes(book, wrong)


@pytest.mark.parametrize("k", (2, 5, 1000))
@pytest.mark.parametrize("value", (0.05, 0.3, 1.5, 4.0))
def test_the_pool_is_a_prefix_within_the_budget(k: int, value: float) -> None:
    near, p = table(20), torch.softmax(2 * torch.randn(20), -1)
    rule = LanternPlus(near, k, value) if value > 1 else Lantern(near, k, value)
    token = torch.arange(22)[None]  # the last two are specials, which have no neighbours
    law = torch.cat((p, torch.zeros(2)))[None, None].expand(1, 22, -1)
    mass = law[0, 0][token]
    found = rule.borrowed(law, token, mass)[0]
    budget = [(value - 1) * float(m) if value > 1 else value for m in mass[0]]
    expected = [borrowed(near, p, code, k, budget[code]) for code in range(20)] + [0.0, 0.0]
    torch.testing.assert_close(found, torch.tensor(expected))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", (lambda near: Lantern(near, delta=0.2), lambda near: LanternPlus(near, 3, 2.0)))
def test_one_step_deviates_from_the_target_by_the_borrowed_mass(make: object, seed: int) -> None:
    rule, near = make(table(SIZE)), table(SIZE)
    p, q = random_tables(SIZE, 2, seed, peak=1.5), random_tables(SIZE, 1, seed + 50, peak=1.5)
    P, Q = p[0][0], q[0][0]
    more = P.new_tensor([borrowed(near, P, x, rule.k, float(rule.budget(P[x]))) for x in range(SIZE)])
    moved = torch.minimum((Q - P).clamp_min(0), more).sum()
    away = (emitted(rule, p, q) - P).abs().sum() / 2
    assert float(away) == pytest.approx(float(moved), abs=1e-12)
    assert away <= (Q - P).abs().sum() / 2 + 1e-12
    if isinstance(rule, LanternPlus):
        assert away <= 1 - 1 / rule.factor + 1e-12


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tree", (chain(1), static_tree([0, 0, 0]), static_tree([0, 0, 0, 0])), ids=("1", "2", "3"))
def test_no_value_becomes_more_than_factor_times_as_likely(tree: object, seed: int) -> None:
    p, q = random_tables(SIZE, 2, seed, peak=2.0, zeros=0.3), random_tables(SIZE, 1, seed + 50, peak=2.0)
    law = emitted(LanternPlus(table(SIZE), SIZE, 2.0), p, q, tree)
    assert (law <= 2.0 * p[0][0] + 1e-12).all()


def test_delta_bounds_one_draft_and_not_the_emitted_distribution() -> None:
    # two likely drafts, each the neighbour of a value of its own: each borrows 0.1, together they are 0.2 away
    near = torch.tensor([[2, 3, 1], [3, 2, 0], [0, 1, 3], [1, 0, 2]])
    p = [torch.tensor([[0.4, 0.4, 0.1, 0.1]]).double(), torch.full((4, 4), 0.25).double()]
    q = [torch.tensor([[0.5, 0.5, 0.0, 0.0]]).double()]
    law = emitted(Lantern(near, 1, 0.1), p, q)
    assert float((law - p[0][0]).abs().sum() / 2) == pytest.approx(0.2)


@pytest.mark.parametrize("seed", range(4))
def test_the_optimal_residual_is_nearest(seed: int) -> None:
    near = table(SIZE)
    p, q = random_tables(SIZE, 2, seed), random_tables(SIZE, 1, seed + 50)
    target = p[0][0]

    def away(residual: str) -> float:
        return total_variation(emitted(Lantern(near, 3, 0.3, residual), p, q)[None], target)

    others = [away(other) for other in ("static", "dynamic", "lumina")]
    assert min(others) >= away("optimal") - 1e-12 and max(others) > away("optimal") + 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_acceptance_above_the_exact_rule_has_the_same_optimal_residual(seed: int) -> None:
    p, q = random_tables(9, 1, seed)[0][0], random_tables(9, 1, seed + 9)[0][0]
    f = torch.maximum((p / q).clamp_max(1), torch.rand(9, dtype=torch.float64))
    torch.testing.assert_close((p - q * f).clamp_min(0), (p - q).clamp_min(0), atol=1e-15, rtol=0)
    # and below it, with w < 1, the step has the target's law
    w = 0.6
    f = (w * p / q).clamp_max(1)
    rest = (p - q * f).clamp_min(0)
    law = q * f + (1 - (q * f).sum()) * rest / rest.sum()
    torch.testing.assert_close(law, p, atol=1e-15, rtol=0)


@pytest.mark.parametrize("residual", ("static", "dynamic", "lumina"))
@pytest.mark.parametrize("how", (WITHOUT, "deterministic"))
def test_published_residuals_run_on_trees_and_say_their_name(residual: str, how: str) -> None:
    rule = Lantern(table(3), 1, 0.2, residual)
    assert rule.name == f"lantern, {residual} residual (relaxed)"
    p, q = random_tables(3, 3, 0), random_tables(3, 2, 1)
    assert 1e-3 < inexactness(rule, static_tree([0, 0, 0, 1, 1]), p, q, drawn=how) < 1


def test_a_certain_target_is_followed() -> None:
    near, forced = table(8), 9  # a special behind the codes
    scores = torch.full((4, 3, 10), -torch.inf)
    scores[..., forced] = 0.0
    draft = Draft(torch.tensor([[0, 3, 4], [0, forced, 4], [0, 9, 9], [0, 8, 8]]), chain(2), Law("deterministic"))
    for rule in (Lantern(near, delta=1.0), LanternPlus(near)):
        for greedy in (False, True):
            verdict = round_of(rule, draft, Evidence(scores, greedy), Fixed(4, 0.0, 0.5))
            assert verdict.depth.tolist() == [0, 1, 2, 0] and (verdict.correction == forced).all()


def test_greedy_takes_a_draft_whose_neighbourhood_outweighs_the_argmax() -> None:
    near = torch.tensor([[1, 2], [0, 2], [0, 1]])
    scores = torch.tensor([0.3, 0.3, 0.4]).log().expand(3, 2, 3)
    draft = Draft(torch.tensor([[0, 0], [0, 1], [0, 2]]), chain(1), Law("deterministic"))
    for delta, depth in ((0.0, [0, 0, 1]), (0.2, [0, 0, 1]), (0.3, [1, 1, 1])):
        verdict = round_of(Lantern(near, delta=delta), draft, Evidence(scores, True), Fixed(3, 0.0, 0.5))
        assert verdict.depth.tolist() == depth and verdict.correction.tolist() == [2, 2, 2]


def test_greedy_keeps_the_longest_of_the_paths_that_pass() -> None:
    near = torch.tensor([[1, 2, 3], [0, 2, 3], [3, 0, 1], [2, 0, 1]])
    p = torch.tensor([[0.3, 0.3, 0.4, 0.0], [0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.25] * 4])
    draft = Draft(torch.tensor([[9, 0, 2, 1]]), static_tree([0, 0, 0, 2]), Law("deterministic"))
    verdict = round_of(Lantern(near, 1, 0.3), draft, Evidence(p.log()[None], True), Fixed(1, 0.0, 0.5))
    assert (verdict.depth, verdict.node) == (
        torch.tensor([2]),
        torch.tensor([3]),
    )  # 0 passes too, nothing below it does
    lone = Draft(torch.tensor([[9, 0, 2]]), static_tree([0, 0, 0]), Law("deterministic"))
    verdict = round_of(Lantern(near, 1, 0.3), lone, Evidence(p[:3].log()[None], True), Fixed(1, 0.0, 0.5))
    assert verdict.node == 1


@pytest.mark.parametrize("variant", ("static", "dynamic", "lumina"))
def test_published_residuals_of_two_siblings_by_hand(variant: str) -> None:
    """What the dossiers of the public code say happens to one law, value by value."""
    law, share = [0.05, 0.1, 0.15, 0.3, 0.4], [0.3, 0.3, 0.2, 0.1, 0.1]
    near = torch.tensor([[1, 2, 3, 4], [0, 2, 3, 4], [1, 3, 0, 4], [4, 2, 1, 0], [3, 2, 1, 0]])
    token = 0  # its nearest, 1, has 0.1: within the budget of 0.2; the published code wipes k + 1 = 2 of them
    rest = {
        "static": [max(p - q * (i not in (1, 2)), 0) for i, (p, q) in enumerate(zip(law, share, strict=True))],
        "dynamic": [0, 0, 0, 0.3, 0.4],
        "lumina": [max(p - q, 0) * (i not in (1, 2)) for i, (p, q) in enumerate(zip(law, share, strict=True))],
    }[variant]
    made = Law(WITHOUT, torch.tensor([0, -1]), torch.tensor(share).log()[None, None])
    draft = Draft(torch.tensor([[9, token]]), chain(1), made)
    rule, evidence = Lantern(near, 1, 0.2, variant), Evidence(torch.tensor(law).log().expand(1, 2, -1))
    found = rule.residual(evidence, draft, rule.weigh(evidence, draft), torch.zeros(1, dtype=torch.long))
    torch.testing.assert_close(found[0], torch.tensor(rest) / sum(rest), atol=1e-6, rtol=0)


def test_a_table_that_does_not_fit_is_refused() -> None:
    draft, evidence = Draft(torch.tensor([[0, 1]]), chain(1), Law("deterministic")), Evidence(torch.zeros(1, 2, 5))
    for greedy in (False, True):
        with pytest.raises(ValueError, match="expected rows for at most the target's 5 values, got 8"):
            Lantern(table(8)).weigh(Evidence(evidence.scores, greedy), draft)
    with pytest.raises(ValueError, match="neighbours: expected k . 1 = 4 columns"):
        Lantern(table(8)[:, :3], 3, residual="static")


@pytest.mark.parametrize("wrong", (dict(delta=-0.1), dict(delta=1.5), dict(k=0), dict(residual="none")))
def test_wrong_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
        Lantern(table(8), **wrong)
    with pytest.raises(ValueError, match="factor: expected"):
        LanternPlus(table(8), factor=0.5)
    with pytest.raises(ValueError, match="neighbours: expected"):
        Lantern(table(8).float())

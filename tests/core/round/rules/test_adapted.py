"""Trees may grow by everything drawn before, in any branch; trees that are pruned behind the draw lose the target's law."""

from __future__ import annotations

import pytest

from mmspec.certify.enumeration import contrasted_tables
from mmspec.core.round.rules import BlockVerification, RecursiveRejection, Rule, TokenWise, Traversal
from tests.core.round.rules.cases import WITH, WITHOUT
from tests.core.round.rules.copied import draft_inexactness
from tests.core.round.rules.grown import History, Policy, at_random, best_first, confident_chain, every_growth

ROUNDING, VISIBLE = 1e-12, 1e-2
DEPTH = 3
RULES: list[tuple[Rule, str]] = [
    (Traversal(), WITHOUT),
    (RecursiveRejection(), WITHOUT),
    (RecursiveRejection(replacement=True), WITH),
]
every_rule = pytest.mark.parametrize(("rule", "drawn"), RULES, ids=[rule.name for rule, _ in RULES])
top_down_and_bottom_up = pytest.mark.parametrize(
    "rule", (Traversal(), RecursiveRejection()), ids=lambda rule: rule.name
)


def off(
    rule: Rule, policy: Policy, *, kind: str = "random", seed: int = 0, drawn: str = WITHOUT, cut: object = None
) -> float:
    p, q = contrasted_tables(kind, 3, DEPTH, seed)
    return draft_inexactness(rule, *every_growth(policy, q, drawn, cut), p)


@every_rule
@pytest.mark.parametrize("kind", ("random", "both with zeros", "far"))
def test_heap_growth_with_a_budget_is_exact(rule: Rule, drawn: str, kind: str) -> None:
    for nodes, floor in ((3, 0.0), (4, 0.0), (4, 0.2)):
        assert off(rule, best_first(nodes, floor), kind=kind, drawn=drawn) < ROUNDING


@every_rule
@pytest.mark.parametrize("seed", range(6))
def test_growth_by_any_function_of_the_earlier_draws_is_exact(rule: Rule, drawn: str, seed: int) -> None:
    for kind in ("random", "q with zeros"):
        assert off(rule, at_random(seed, 4), kind=kind, seed=seed, drawn=drawn) < ROUNDING


@pytest.mark.whole
@every_rule
@pytest.mark.parametrize("seed", range(16))
def test_more_growths_are_exact(rule: Rule, drawn: str, seed: int) -> None:
    for kind in ("random", "p with zeros", "both with zeros", "equal"):
        assert off(rule, at_random(seed, 5), kind=kind, seed=seed, drawn=drawn) < ROUNDING
        assert off(rule, best_first(5, 0.02 * (seed % 5)), kind=kind, seed=seed, drawn=drawn) < ROUNDING


@pytest.mark.parametrize(
    "rule", (TokenWise(), BlockVerification(), Traversal(), RecursiveRejection()), ids=lambda r: r.name
)
def test_a_chain_that_ends_by_the_distribution_ahead_is_exact(rule: Rule) -> None:
    for least in (0.45, 0.6):
        draft, chance = every_growth(confident_chain(DEPTH, least), contrasted_tables("random", 3, DEPTH, 4)[1])
        assert 0 < float(chance[draft.valid.sum(-1) <= DEPTH].sum()) < 1
        assert off(rule, confident_chain(DEPTH, least), seed=4) < ROUNDING


def reranked(nodes: int) -> object:
    """The best nodes by the product of the drawn chances, as EAGLE-2 reranks its candidates."""

    def cut(history: History) -> History:
        def product(node: int) -> float:
            return history.share[node] * product(history.parent[node]) if node else 1.0

        best = sorted(range(1, len(history.parent)), key=lambda node: (-product(node), node))[:nodes]
        return history.without(set(range(1, len(history.parent))) - set(best))

    return cut


def trimmed(least: float) -> object:
    """The nodes down to the first that was drawn with a chance below `least`."""

    def cut(history: History) -> History:
        dropped: set[int] = set()
        for node in range(1, len(history.parent)):
            if history.share[node] < least or history.parent[node] in dropped:
                dropped.add(node)
        return history.without(dropped)

    return cut


@top_down_and_bottom_up
def test_a_rerank_by_the_drawn_chances_is_detected(rule: Rule) -> None:
    assert max(off(rule, best_first(4), seed=seed, cut=reranked(2)) for seed in range(3)) > VISIBLE


@top_down_and_bottom_up
def test_a_cut_by_the_drawn_chances_is_detected(rule: Rule) -> None:
    assert off(rule, best_first(4), cut=trimmed(0.3)) > VISIBLE
    assert off(rule, confident_chain(DEPTH, 0.0), cut=trimmed(0.3)) > VISIBLE


@top_down_and_bottom_up
def test_a_budget_that_drops_the_worst_leaf_is_detected(rule: Rule) -> None:
    def worst_leaf(history: History) -> History:
        leaves = [node for node in range(1, len(history.parent)) if not history.children(node)]
        return history.without({min(leaves, key=lambda node: history.share[node])})

    assert max(off(rule, best_first(4), seed=seed, cut=worst_leaf) for seed in range(3)) > VISIBLE

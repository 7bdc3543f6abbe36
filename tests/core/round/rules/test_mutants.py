"""The harness sees every mistake: each mutant is off by far more than rounding, on the cases the real rule passes."""

from __future__ import annotations

import pytest
import torch

from mmspec.certify.enumeration import contrasted_tables as laws
from mmspec.certify.enumeration import enumerate_rule, inexactness, random_tables
from mmspec.certify.mutants import Lenient, NoResidual, RuleMutant
from mmspec.core.round.draft import Drawn
from mmspec.core.round.rules import BlockVerification, KSeq, RecursiveRejection, Rule, TargetMatch, TokenWise, Traversal
from mmspec.core.round.tree import Tree, chain, static_tree
from tests.core.round.rules import mutants
from tests.core.round.rules.cases import GROWS, WITH, WITHOUT
from tests.core.round.rules.naive import FoundInTheWild, NaiveTraversal

VISIBLE = 1e-4
TREE = static_tree([0, 0, 0, 1, 1, 2, 2])
REAL: list[tuple[Rule, Tree, str]] = [
    (TokenWise(), chain(3), WITHOUT),
    (BlockVerification(), chain(3), WITHOUT),
    (Traversal(), TREE, WITHOUT),
    (RecursiveRejection(), TREE, WITHOUT),
    (RecursiveRejection(replacement=True), TREE, WITH),
    (KSeq(), TREE, WITH),
    (TargetMatch(), TREE, WITHOUT),
]
every_rule = pytest.mark.parametrize(("rule", "tree", "drawn"), REAL, ids=[rule.name for rule, _, _ in REAL])


def off(rule: Rule, tree: Tree, drawn: Drawn = WITHOUT, **how: object) -> float:
    p, q = laws("random", 3, tree.max_depth, seed=7)
    return inexactness(rule, tree, p, q, drawn=drawn, **how)


@every_rule
@pytest.mark.parametrize("mistake", (Lenient, NoResidual), ids=lambda m: m.__name__)
def test_a_mistake_in_any_rule_shows(rule: Rule, tree: Tree, drawn: Drawn, mistake: type[RuleMutant]) -> None:
    assert off(rule, tree, drawn) < 1e-12
    assert off(mistake(rule), tree, drawn) > VISIBLE


@every_rule
def test_a_record_that_differs_from_the_draft_distribution_is_detected(rule: Rule, tree: Tree, drawn: Drawn) -> None:
    _, q = laws("random", 3, tree.max_depth, seed=7)
    warmer = [(table.log() * 0.8).softmax(-1) for table in q]
    if isinstance(rule, TargetMatch):  # reads no record
        assert off(rule, tree, drawn, record=warmer) < 1e-12
    else:
        assert off(rule, tree, drawn, record=warmer) > VISIBLE


@pytest.mark.parametrize("rule", (Traversal(), RecursiveRejection(), TargetMatch()), ids=lambda r: r.name)
def test_siblings_tested_in_another_order_show(rule: Rule) -> None:
    assert off(mutants.LateSiblingsFirst(rule), TREE) > VISIBLE


@pytest.mark.parametrize("rule", (BlockVerification(), Traversal(), RecursiveRejection()), ids=lambda r: r.name)
def test_nodes_pruned_by_drawn_values_are_detected(rule: Rule) -> None:
    assert off(mutants.PrunedByValue(rule), chain(2)) > VISIBLE


def test_a_wrong_normaliser_shows() -> None:
    assert off(NaiveTraversal(), TREE) < 1e-12
    assert off(FoundInTheWild(), TREE) > VISIBLE
    assert off(FoundInTheWild(), chain(3)) > VISIBLE


def test_a_wrong_prefix_weight_shows() -> None:
    assert off(mutants.WeightWithoutFloor(), chain(3)) > VISIBLE


def test_a_missing_distribution_treated_as_probability_1_is_detected() -> None:
    assert off(mutants.NoLawMeansOne(), chain(3), "deterministic") > VISIBLE


def test_a_wrong_discount_shows() -> None:
    assert off(mutants.WrongDiscount(), TREE, WITH) > VISIBLE


def test_a_wrong_selection_shows() -> None:
    assert off(mutants.PrefixOnly(), TREE) > VISIBLE


def test_with_replacement_is_not_without() -> None:
    p, q = laws("random", 3, 2, seed=7)
    rule = RecursiveRejection(replacement=True)
    rule.proven_for = frozenset({("categorical", WITHOUT)})
    assert inexactness(rule, TREE, p, q) > VISIBLE


@pytest.mark.parametrize("tree", (TREE, static_tree([0, 0, 0, 0, 1, 4]), chain(3)), ids=("binary", "wide", "chain"))
@pytest.mark.parametrize("kind", ("random", "both with zeros"))
def test_two_scalars_hold_the_whole_residual(tree: Tree, kind: str) -> None:
    p, q = laws(kind, 3, tree.max_depth, seed=2)
    expected = enumerate_rule(NaiveTraversal(), tree, p, q, grow=GROWS[0](tree))
    draft, evidence, real = expected.draft, expected.evidence, Traversal()
    found = real.weigh(evidence, draft)
    live = expected.reach > 1e-12
    torch.testing.assert_close(found.threshold[live], expected.weights.threshold[live], atol=1e-12, rtol=0)
    for node in range(tree.nodes):
        here = torch.full((draft.batch,), node)
        law = real.residual(evidence, draft, found, here)
        law = law / law.sum(-1, keepdim=True)
        torch.testing.assert_close(law[live[:, node]], expected.weights.p[live[:, node], node], atol=1e-10, rtol=0)


def test_random_tables_are_distributions() -> None:
    for table in random_tables(4, 3, 0, zeros=0.6):
        torch.testing.assert_close(table.sum(-1), torch.ones(len(table), dtype=torch.float64))
        assert (table == 0).any()

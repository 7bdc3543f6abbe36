"""Every exact rule emits the target's joint law: all drafts, all decisions, no sampling error."""

from __future__ import annotations

import pytest
import torch

from mmspec.certify.enumeration import LAWS, expected_accepted, inexactness, random_tables
from mmspec.certify.enumeration import contrasted_tables as laws
from mmspec.core.round.draft import Draft, Drawn, Evidence, Law
from mmspec.core.round.rules import (
    BestExact,
    BlockVerification,
    KSeq,
    RecursiveRejection,
    Rule,
    TargetMatch,
    TokenWise,
    Traversal,
)
from mmspec.core.round.tree import chain, static_tree
from tests.core.round.rules.cases import CHAINS, GROWS, RULES, TREES, WITH, WITHOUT

ROUNDING = 1e-12
BRANCHING = [case for case in RULES if not case[2]]


def over(cases: list[tuple[Rule, str, bool]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("rule", "drawn", "chains_only"), cases, ids=[f"{rule.name} {drawn}" for rule, drawn, _ in cases]
    )


@over(RULES)
@pytest.mark.parametrize("kind", LAWS)
def test_chains_are_exact(rule: Rule, drawn: Drawn, chains_only: bool, kind: str) -> None:
    for depth, tree in enumerate(CHAINS.values()):
        for size in (3, 4) if depth == 4 else (3, 4, 5):
            p, q = laws(kind, size, depth, seed=depth * 10 + size)
            assert inexactness(rule, tree, p, q, drawn=drawn) < ROUNDING


@over(BRANCHING)
@pytest.mark.parametrize("kind", LAWS)
def test_trees_are_exact(rule: Rule, drawn: Drawn, chains_only: bool, kind: str) -> None:
    for name, tree in TREES.items():
        p, q = laws(kind, 3, tree.max_depth, seed=len(name))
        assert inexactness(rule, tree, p, q, drawn=drawn) < ROUNDING


@over(RULES)
def test_wider_vocabularies_are_exact(rule: Rule, drawn: Drawn, chains_only: bool) -> None:
    tree = chain(2) if chains_only else static_tree([0, 0, 0, 0, 1])
    for size in (4, 5):
        p, q = laws("random", size, tree.max_depth, seed=size)
        assert inexactness(rule, tree, p, q, drawn=drawn) < ROUNDING


@over(RULES)
@pytest.mark.parametrize("grow", GROWS)
@pytest.mark.parametrize("kind", ("random", "both with zeros"))
def test_nodes_left_undrawn_by_earlier_values_keep_it_exact(
    rule: Rule, drawn: Drawn, chains_only: bool, grow: object, kind: str
) -> None:
    for name, tree in (CHAINS if chains_only else CHAINS | TREES).items():
        p, q = laws(kind, 3, tree.max_depth, seed=len(name))
        assert inexactness(rule, tree, p, q, drawn=drawn, grow=grow(tree)) < ROUNDING


@over(RULES)
def test_a_tree_per_row_is_exact(rule: Rule, drawn: Drawn, chains_only: bool) -> None:
    tree = chain(3) if chains_only else static_tree([0, 0, 0, 1, 1, 2])
    p, q = laws("both with zeros", 3, tree.max_depth, seed=3)
    assert inexactness(rule, tree, p, q, drawn=drawn, grow=GROWS[2](tree), per_row=True) < ROUNDING


def impossible(rule: Rule, drawn: Drawn, chains_only: bool) -> None:
    """Judge a draft whose first value has the probability 0 in its own record, as rounding or a foreign record leaves it."""
    tree = chain(2) if chains_only else static_tree([0, 0, 0, 1])
    scores, record = torch.zeros(2, tree.nodes, 4), torch.zeros(2, tree.nodes, 4)
    record[..., 3] = -torch.inf
    value = torch.tensor([0, 3, 1, 2])[: tree.nodes].repeat(2, 1)
    draft, evidence = Draft(value, tree, Law(drawn, torch.arange(tree.nodes), record)), Evidence(scores)
    weights = rule.weigh(evidence, draft)
    assert (weights.threshold[:, 1] == 0).all() and (weights.threshold[:, 2:] >= 0).all()
    for node in range(tree.nodes):
        residual = rule.residual(evidence, draft, weights, torch.full((2,), node))
        assert (residual.sum(-1) > 0).all() and (node or (residual[:, 3] > 0).all())


@over([case for case in RULES if not isinstance(case[0], TargetMatch | BestExact)])
def test_a_value_that_its_record_cannot_draw_is_rejected(rule: Rule, drawn: Drawn, chains_only: bool) -> None:
    impossible(rule, drawn, chains_only)


@pytest.mark.parametrize("drawn", ("deterministic", "none"))
@pytest.mark.parametrize("kind", LAWS)
def test_target_match_is_exact_for_every_single_draft(drawn: Drawn, kind: str) -> None:
    for tree in (chain(3), static_tree([0, 0, 0, 0, 1, 1]), static_tree([0, 0, 0, 1, 1, 2])):
        p, _ = laws(kind, 3, tree.max_depth, seed=1)
        assert inexactness(TargetMatch(), tree, p, p, drawn=drawn) < ROUNDING


def test_block_verification_reaches_the_published_lengths() -> None:
    p, q = random_tables(2, 3, 0), random_tables(2, 2, 0)
    for table in p:
        table[:, 0], table[:, 1] = 1 / 3, 2 / 3
    for table in q:
        table[:, 0], table[:, 1] = 2 / 3, 1 / 3
    assert expected_accepted(TokenWise(), chain(2), p, q) == pytest.approx(10 / 9)
    assert expected_accepted(BlockVerification(), chain(2), p, q) == pytest.approx(11 / 9)


@pytest.mark.parametrize("seed", range(6))
def test_stronger_rules_accept_more(seed: int) -> None:
    tree = TREES["two levels of two"]
    p, q = random_tables(3, 3, seed), random_tables(3, 2, seed + 50)

    def accepted(rule: Rule, drawn: Drawn = WITHOUT) -> float:
        return expected_accepted(rule, tree, p, q, drawn=drawn)

    assert accepted(Traversal()) > accepted(RecursiveRejection()) > accepted(TargetMatch())
    assert accepted(RecursiveRejection()) > accepted(RecursiveRejection(replacement=True), WITH)
    assert accepted(KSeq(), WITH) > accepted(TargetMatch(), WITH)
    assert expected_accepted(BlockVerification(), chain(2), p, q) >= expected_accepted(TokenWise(), chain(2), p, q)

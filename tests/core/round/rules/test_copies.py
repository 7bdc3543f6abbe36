"""A copied path beside drawn nodes keeps the target's joint law: all drafts, all decisions; mistakes show."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import LAWS, Tables, contrasted_tables
from mmspec.certify.mutants import RuleMutant
from mmspec.core.drafting.merge import with_copied_paths
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.rules import (
    BestExact,
    BlockVerification,
    KSeq,
    RecursiveRejection,
    Rule,
    TargetMatch,
    TokenWise,
    Traversal,
    Weights,
)
from mmspec.core.round.rules.copies import SiblingRule
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree
from mmspec.kernels.log_law import Residual
from tests.core.round.rules.cases import GROWS, WITH
from tests.core.round.rules.copied import copied_inexactness, draft_inexactness, union_drafts

ROUNDING, VISIBLE = 1e-12, 1e-4
TREES = {
    "one drawn node": chain(1),
    "a drawn chain": chain(2),
    "a fan": static_tree([0, 0, 0]),
    "a fan and a level": static_tree([0, 0, 0, 1]),
    "not in breadth order": static_tree([0, 0, 1, 0, 3]),
}
PATHS = ((0,), (1, 2), (2, 0, 1))
RULES = (Traversal(), RecursiveRejection(), TargetMatch())
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def tables(kind: str, size: int, tree: Tree, path: tuple[int, ...]) -> tuple[Tables, Tables]:
    p, _ = contrasted_tables(kind, size, max(tree.max_depth, len(path)), seed=7 + len(path))
    _, q = contrasted_tables(kind, size, tree.max_depth, seed=7)
    return p, q


def off(rule: Rule, tree: Tree, path: tuple[int, ...], kind: str = "random", size: int = 3, **how: object) -> float:
    return copied_inexactness(rule, tree, *tables(kind, size, tree, path), path, **how)


@every_rule
@pytest.mark.parametrize("kind", LAWS)
def test_drawn_and_copied_children_are_exact(rule: Rule, kind: str) -> None:
    for tree in TREES.values():
        for path in PATHS:
            assert off(rule, tree, path, kind) < ROUNDING


@every_rule
@pytest.mark.parametrize("size", (4, 5))
def test_wider_vocabularies_are_exact(rule: Rule, size: int) -> None:
    for path in ((3,), (1, 3)):
        assert off(rule, TREES["a fan"], path, size=size) < ROUNDING
        assert off(rule, TREES["a drawn chain"], path, size=size) < ROUNDING


@every_rule
@pytest.mark.parametrize("grow", GROWS)
def test_copies_in_the_places_of_nodes_left_undrawn_are_exact(rule: Rule, grow: object) -> None:
    for name in ("a drawn chain", "a fan and a level"):
        for path in PATHS:
            assert off(rule, TREES[name], path, grow=grow(TREES[name])) < ROUNDING


TRIES = (((1,), (2,)), ((1, 2), (1, 0), (2,)), ((0, 1), (2, 1), (2, 0)))


@every_rule
@pytest.mark.parametrize("kind", ("random", "both with zeros", "far"))
def test_tries_of_copied_paths_are_exact(rule: Rule, kind: str) -> None:
    for name in ("one drawn node", "a drawn chain", "a fan"):
        for paths in TRIES:
            p, q = tables(kind, 3, TREES[name], (0, 0))
            draft, chance = union_drafts(TREES[name], q, paths, "without_replacement")
            assert draft_inexactness(rule, draft, chance, p) < ROUNDING


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)
def test_copied_siblings_that_count_as_a_single_path_show(rule: SiblingRule) -> None:
    p, q = tables("random", 3, TREES["one drawn node"], (0, 0))
    draft, chance = union_drafts(TREES["one drawn node"], q, TRIES[1], "without_replacement")
    draft.law.copies.branching = False
    assert draft_inexactness(rule, draft, chance, p) > VISIBLE


@every_rule
def test_a_path_that_goes_alone_is_exact(rule: Rule) -> None:
    assert off(rule, TREES["a fan and a level"], (1, 2), alone=True) < ROUNDING


def test_copies_behind_children_drawn_with_replacement_are_exact() -> None:
    for rule in (RecursiveRejection(replacement=True), BestExact(), TargetMatch()):
        for path in PATHS:
            assert off(rule, TREES["a fan and a level"], path, drawn=WITH) < ROUNDING


def test_best_exact_selects_traversal_and_no_single_distribution_rule() -> None:
    for name, drawn in (("a drawn chain", "without_replacement"), ("a fan", "without_replacement"), ("a fan", WITH)):
        tree = TREES[name]
        draft, _ = union_drafts(tree, tables("random", 3, tree, (1, 2))[1], [(1, 2)], drawn)
        chosen = BestExact().rule_for(draft, Evidence(torch.zeros(draft.batch, draft.tree.nodes, 3)))
        assert chosen.name == ("traversal" if drawn == "without_replacement" else "recursive_replacement")
        for rule in (TokenWise(), BlockVerification(), KSeq()):
            with pytest.raises(ValueError, match="expected"):
                rule.check(draft)
    reused = replace(draft, law=replace(draft.law, drawn="without_replacement", reused=True))
    assert BestExact().rule_for(reused, Evidence(torch.zeros(1, 1, 3))).name == "recursive"


class KeepsTheToken(RuleMutant):
    """The residual behind a rejected copy still has its token."""

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        bare = replace(draft, law=replace(draft.law, copies=None))
        return self.rule.residual(evidence, bare, weights, node)


class KeepsTheWeight(RuleMutant):
    """Drawn nodes are tested as if no copy had been."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights, copies = self.rule.weigh(evidence, draft), draft.law.copies
        count = copies.drawn.nodes
        part = Draft(
            draft.value[:, :count],
            copies.drawn,
            replace(draft.law, copies=None, row=draft.law.row[:count]),
            draft.valid[:, :count] & ~copies.node[:, :count],
        )
        bare = self.rule.weigh(Evidence(evidence.scores[:, :count]), part)
        threshold = weights.threshold.clone()
        threshold[:, :count] = torch.where(copies.node[:, :count], threshold[:, :count], bare.threshold)
        return replace(weights, threshold=threshold)


class CopiesFirst(RuleMutant):
    """Copied nodes are tested before the drawn ones whose rejection their chance counts on."""

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        tree, copied = draft.tree, draft.law.copies.node
        first = torch.where(copied.repeat_interleave(len(uniform) // len(copied), 0), -1000, 0)
        order = (tree.post_rank + first).argsort(-1).argsort(-1)
        rank = (tree.sibling_rank + first).clamp(min=-1) + 1
        return self.rule.select(
            weights, uniform, replace(draft, tree=replace(tree, post_rank=order, sibling_rank=rank))
        )


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)
def test_a_copy_that_is_forgotten_in_the_residual_shows(rule: SiblingRule) -> None:
    assert off(KeepsTheToken(rule), TREES["a fan"], (1, 2)) > VISIBLE


def test_a_copy_that_takes_nothing_off_its_parents_weight_shows() -> None:
    assert off(KeepsTheWeight(Traversal()), TREES["a drawn chain"], (1, 2, 0)) > VISIBLE


@every_rule
def test_copies_tested_before_drawn_siblings_show(rule: Rule) -> None:
    assert off(CopiesFirst(rule), TREES["a fan"], (1, 2)) > VISIBLE


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)
def test_a_drawn_node_left_out_for_the_copy_of_its_token_shows(rule: Rule) -> None:
    def without_duplicates(draft: Draft) -> Draft:
        return replace(draft, valid=draft.valid & ((draft.value != 1) | (torch.arange(draft.tree.nodes) == 0)))

    assert off(rule, TREES["a fan"], (1, 2)) < ROUNDING
    assert off(rule, TREES["a fan"], (1, 2), before=without_duplicates) > VISIBLE


def test_a_distribution_that_ignores_the_copied_nodes_is_detected() -> None:
    class AllDrawn(RuleMutant):
        def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
            return self.rule.weigh(evidence, self._bare(draft))

        def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
            return self.rule.residual(evidence, self._bare(draft), weights, node)

        def _bare(self, draft: Draft) -> Draft:
            return replace(draft, law=replace(draft.law, copies=None))

    assert off(AllDrawn(Traversal()), TREES["a fan"], (1, 2)) > VISIBLE


def test_the_path_follows_drawn_nodes_of_its_tokens_and_branches_off_behind_them() -> None:
    tree = static_tree([0, 0, 0, 1])
    value = torch.tensor([[9, 4, 5, 6], [9, 4, 5, 6], [9, 4, 5, 6]])
    draft = Draft(value, tree, Law("deterministic"))
    union = with_copied_paths(draft, [[[4, 6, 7]], [[5, 8]], [[]]], [False] * 3)
    assert union.value[:, 4:].tolist() == [[7], [8], [0]] and union.valid[:, 4].tolist() == [True, True, False]
    assert union.tree.parent[:2, 4].tolist() == [3, 2] and union.law.drawn == "deterministic"
    assert with_copied_paths(draft, [[[4, 6]], [[5]], []], [False] * 3) is draft


def test_a_rows_nodes_do_not_depend_on_the_other_rows() -> None:
    tree, law = chain(3), Law("without_replacement", torch.tensor([0, 1, 2, -1]), torch.zeros(2, 3, 9))
    value = torch.tensor([[0, 1, 2, 3], [0, 4, 5, 6]])
    valid = torch.tensor([[True, True, False, False], [True, True, True, True]])
    both = with_copied_paths(Draft(value, tree, law, valid), [[[7, 8]], [[4, 8, 8]]], [False, False])
    assert both.value[0, :4].tolist() == [0, 1, 7, 8] and both.tree.parent[0, :4].tolist() == [0, 0, 0, 2]
    assert both.law.copies.node.tolist() == [[False, False, True, True, False, False], [False] * 4 + [True, True]]
    assert both.tree.parent[1].tolist() == [0, 0, 1, 2, 1, 4] and both.valid[0].sum() == 4
    alone = with_copied_paths(Draft(value, tree, law, valid), [[[7, 8]], [[4, 8, 8]]], [False, True])
    assert alone.value[1].tolist() == [0, 4, 8, 8] and alone.law.copies.node[1].tolist() == [False, True, True, True]


def test_a_branch_in_the_places_of_undrawn_nodes_is_no_chain() -> None:
    law = Law("without_replacement", torch.tensor([0, 1, 2, -1]), torch.zeros(1, 3, 9))
    valid = torch.tensor([[True, True, False, False]])
    union = with_copied_paths(Draft(torch.tensor([[0, 1, 2, 3]]), chain(3), law, valid), [[[7, 8]]], [False])
    assert union.tree.nodes == 4 and union.tree.max_depth == 2 and not union.tree.straight
    assert with_copied_paths(
        Draft(torch.tensor([[0, 1, 2, 3]]), chain(3), law), [[[1, 2, 3, 4]]], [False]
    ).tree.straight


def test_a_recorded_distribution_over_a_tree_per_row_is_refused() -> None:
    tree = dynamic_tree(torch.tensor([[0, 0, 1], [0, 0, 0]]), 2, 1)
    draft = Draft(
        torch.zeros(2, 3, dtype=torch.long), tree, Law("without_replacement", torch.zeros(3), torch.zeros(2, 2, 5))
    )
    with pytest.raises(ValueError, match="one tree for all rows"):
        with_copied_paths(draft, [[[1]], [[2]]], [False, False])


def test_a_residual_with_tokens_out_has_their_mass_nowhere() -> None:
    from mmspec.kernels.residual_sampling import residual_weights

    p, one = torch.tensor([[[0.5, 0.3, 0.2]]]), torch.ones(1, 1)
    q = torch.tensor([[[0.2, 0.7, 0.1]]])
    token, remove = torch.tensor([[0]]), torch.tensor([[True]])
    form = Residual("scaled", p, q, torch.tensor([0]), one, one, token, remove)
    torch.testing.assert_close(residual_weights(form, torch.tensor([0])), torch.tensor([[0.0, 0.0, 0.1]]))
    full = replace(form, q=torch.tensor([[[0.2, 0.7, 0.2]]]))
    torch.testing.assert_close(residual_weights(full, torch.tensor([0])), p[0])

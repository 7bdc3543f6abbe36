"""Two drawn sources under one root keep the target's joint law: all drafts, all decisions; mistakes show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import LAWS, Tables, contrasted_tables, every_draft, expected_accepted, random_tables
from mmspec.certify.mutants import RuleMutant
from mmspec.core.drafting.merge import joined, with_copied_paths
from mmspec.core.round.draft import Draft, Drawn, Evidence, Law
from mmspec.core.round.rules import (
    BestExact,
    BlockVerification,
    KSeq,
    RecursiveRejection,
    Rule,
    TargetMatch,
    Traversal,
    Weights,
)
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree
from tests.core.round.rules.cases import GROWS, WITH, WITHOUT
from tests.core.round.rules.copied import draft_inexactness, evidence_of, reach_of

ROUNDING, VISIBLE = 1e-12, 1e-3
FAN, DEEP = static_tree([0, 0, 0]), static_tree([0, 0, 0, 1])
RULES = (Traversal(), RecursiveRejection(), TargetMatch())
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
both_orders = pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)


def one_hot(size: int, depth: int) -> Tables:
    return [torch.eye(size, dtype=torch.float64)[torch.arange(size**d) % size] for d in range(depth)]


def sources(kind: str, seed: int = 3, size: int = 3) -> dict[str, tuple[Tables, Tables]]:
    """The pairs of distributions at depth 2, first source first."""
    _, q = contrasted_tables(kind, size, 2, seed)
    other, picked = random_tables(size, 2, seed + 300, zeros=0.3), one_hot(size, 2)
    return {"(q1, q1)": (q, q), "(q1, q2)": (q, other), "(q1, one-hot)": (q, picked), "(one-hot, q1)": (picked, q)}


def drafts_of(tree: Tree, q: Tables, drawn: Drawn, grow: object = None) -> tuple[Draft, Tensor]:
    drafts = every_draft(tree, q, drawn, grow)
    depth, inner = tree.depth[0].tolist(), sorted({int(i) for i in tree.parent[0, 1:]})
    row = torch.full((tree.nodes,), -1)
    row[inner] = torch.arange(len(inner))
    scores = torch.stack([q[depth[i]][drafts.code[:, i]] for i in inner], 1).log()
    return Draft(drafts.value, tree, Law(drawn, row, scores), drafts.valid), drafts.chance


def rows_of(draft: Draft, rows: Tensor) -> Draft:
    law = replace(draft.law, scores=draft.law.scores[rows])
    return Draft(draft.value[rows], draft.tree, law, draft.valid[rows])


def pairs(
    trees: tuple[Tree, Tree], laws: tuple[Tables, Tables], drawn: Drawn = WITHOUT, grow: object = None
) -> tuple[Draft, Tensor]:
    """Every pair of drafts as one draft, and its probability."""
    (one, first), (two, second) = (drafts_of(t, q, drawn, grow and grow(t)) for t, q in zip(trees, laws, strict=True))
    a = torch.arange(len(first)).repeat_interleave(len(second))
    b = torch.arange(len(second)).repeat(len(first))
    return joined(rows_of(one, a), rows_of(two, b)), first[a] * second[b]


def off(
    rule: Rule,
    pair: str,
    kind: str = "random",
    trees: tuple[Tree, Tree] = (chain(2), DEEP),
    *,
    before: Callable[[Draft], Draft] = lambda draft: draft,
    seed: int = 3,
    size: int = 3,
    **how: object,
) -> float:
    p, _ = contrasted_tables(kind, size, 2, seed)
    draft, chance = pairs(trees, sources(kind, seed, size)[pair], **how)
    return draft_inexactness(rule, before(draft), chance, p)


@every_rule
@pytest.mark.parametrize("pair", ("(q1, q1)", "(q1, q2)", "(q1, one-hot)", "(one-hot, q1)"))
def test_two_sources_are_exact(rule: Rule, pair: str) -> None:
    for kind in ("random", "both with zeros", "far"):
        assert off(rule, pair, kind) < ROUNDING


@pytest.mark.whole
@every_rule
@pytest.mark.parametrize("kind", LAWS)
def test_more_trees_of_two_sources_are_exact(rule: Rule, kind: str) -> None:
    for pair in ("(q1, q1)", "(q1, q2)", "(q1, one-hot)", "(one-hot, q1)"):
        for trees in ((chain(1), FAN), (FAN, chain(2)), (DEEP, chain(1)), (DEEP, FAN)):
            assert off(rule, pair, kind, trees) < ROUNDING
        assert off(rule, pair, kind, (chain(1), FAN), size=4) < ROUNDING


@both_orders
@pytest.mark.parametrize("grow", GROWS[:3])
def test_sources_that_stop_by_their_own_draws_are_exact(rule: Rule, grow: object) -> None:
    assert off(rule, "(q1, q2)", "both with zeros", (DEEP, chain(2)), grow=grow) < ROUNDING


def test_sources_drawn_with_replacement_are_exact() -> None:
    for pair in ("(q1, q1)", "(q1, q2)"):
        assert off(RecursiveRejection(replacement=True), pair, drawn=WITH) < ROUNDING
        assert off(BestExact(), pair, drawn=WITH) < ROUNDING


@every_rule
def test_copies_behind_two_sources_are_exact(rule: Rule) -> None:
    def copied(draft: Draft) -> Draft:
        return with_copied_paths(draft, [[[1, 2], [2, 0]]] * draft.batch, [False] * draft.batch)

    for kind in ("random", "both with zeros"):
        assert off(rule, "(q1, q2)", kind, (chain(1), chain(1)), before=copied) < ROUNDING


def without_duplicates(draft: Draft) -> Draft:
    """Drops the second source's draws of tokens that the first source drew too."""
    first, place = draft.law.second.first, draft.law.second.first.nodes
    children = (first.parent[0, 1:] == 0).nonzero()[:, 0] + 1
    seen = (draft.value[:, children] == draft.value[:, place, None]).any(-1)
    valid = draft.valid.clone()
    valid[:, place] &= ~seen
    return replace(draft, valid=valid)


@both_orders
@pytest.mark.parametrize("pair", ("(q1, q1)", "(q1, q2)"))
def test_a_drawn_duplicate_that_is_dropped_is_detected(rule: Rule, pair: str) -> None:
    chains = chain(1), chain(2)
    assert off(rule, pair, trees=chains) < ROUNDING
    assert off(rule, pair, trees=chains, before=without_duplicates) > 10 * VISIBLE


class ForgetsTheFirst(RuleMutant):
    """The second tree is judged against the target's own distribution."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = self.rule.weigh(evidence, draft)
        trees, count = draft.law.second, draft.law.second.first.nodes
        place = torch.cat((torch.zeros(1, dtype=torch.long), torch.arange(count, draft.tree.nodes)))
        law = Law(draft.law.drawn, draft.law.row[place], draft.law.scores)
        alone = Draft(draft.value[:, place], trees.second, law, draft.valid[:, place])
        bare = self.rule.weigh(Evidence(evidence.scores[:, place]), alone)
        return replace(weights, threshold=torch.cat((weights.threshold[:, :count], bare.threshold[:, 1:]), 1))


class OneRecord(RuleMutant):
    """The first source's record serves both trees."""

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        row = draft.law.row.clone()
        row[0] = draft.law.second.first_row
        return self.rule.weigh(evidence, replace(draft, law=replace(draft.law, row=row)))


@both_orders
def test_mistakes_show(rule: Rule) -> None:
    assert off(ForgetsTheFirst(rule), "(q1, q2)") > VISIBLE
    assert off(OneRecord(rule), "(q1, q2)") > VISIBLE


def test_a_second_source_is_worth_more_than_no_second_source() -> None:
    p, _ = contrasted_tables("random", 3, 2, 3)
    one, two = sources("random")["(q1, q2)"]
    for rule in RULES[:2]:
        draft, chance = pairs((chain(2), chain(2)), (one, two))
        evidence, _ = evidence_of(draft, p)
        reach = reach_of(rule, rule.weigh(evidence, draft), draft, chance)
        both = float((reach * draft.tree.depth).sum())
        assert both > max(expected_accepted(rule, chain(2), p, q) for q in (one, two)) + 0.05


def test_the_union_of_drafts_keeps_every_drawn_node() -> None:
    law = Law(WITHOUT, torch.tensor([0, -1, -1]), torch.zeros(1, 1, 5))
    first = Draft(torch.tensor([[9, 1, 2]]), FAN, law)
    second = Draft(torch.tensor([[9, 1, 3]]), chain(2), Law(WITHOUT, torch.tensor([0, 1, -1]), torch.ones(1, 2, 5)))
    union = joined(first, second)
    assert union.value.tolist() == [[9, 1, 2, 1, 3]] and union.tree.parent.tolist() == [[0, 0, 0, 0, 3]]
    assert union.law.row.tolist() == [1, -1, -1, 2, -1] and union.law.second.first_row.tolist() == [0]
    assert joined(first, Draft(first.value[:, :1], chain(0), Law("none"))) is first
    picked = Draft(second.value, second.tree, Law("deterministic"))
    assert joined(first, picked).value.tolist() == [[9, 1, 2, 3]] and joined(first, picked).law.copies is not None
    with pytest.raises(ValueError, match="drawn alike"):
        joined(picked, first)
    with pytest.raises(ValueError, match="one tree for all rows"):
        joined(replace(first, tree=dynamic_tree(first.tree.parent.expand(2, -1), 1, 1)), second)


def test_records_over_different_vocabularies_are_aligned() -> None:
    few, more = torch.tensor([0, 2]), torch.tensor([2, 4])
    row = torch.tensor([0, -1])
    first = Draft(torch.tensor([[9, 2]]), chain(1), Law(WITHOUT, row, torch.zeros(1, 1, 2), ids=few))
    second = Draft(torch.tensor([[9, 4]]), chain(1), Law(WITHOUT, row, torch.ones(1, 1, 2), ids=more))
    union = joined(first, second).law
    assert union.ids.tolist() == [0, 2, 4]
    assert union.scores.tolist() == [[[0.0, 0.0, -torch.inf], [-torch.inf, 1.0, 1.0]]]
    whole = replace(second, law=Law(WITHOUT, row, torch.zeros(1, 1, 6)))
    assert joined(first, whole).law.ids is None and joined(first, whole).law.scores.shape == (1, 2, 6)


def test_rules_of_a_single_source_refuse_two() -> None:
    draft, _ = pairs((chain(1), chain(1)), sources("random")["(q1, q2)"], WITHOUT)
    assert BestExact().rule_for(draft, Evidence(torch.zeros(1, 1, 3))).name == "traversal"
    for rule in (BlockVerification(), KSeq()):
        with pytest.raises(ValueError, match="expected"):
            rule.check(draft)

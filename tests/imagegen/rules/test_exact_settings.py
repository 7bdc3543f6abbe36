"""Every relaxed rule has a setting that is the exact rule: bit for bit on shared uniforms, and by enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmspec.certify.enumeration import LAWS, inexactness
from mmspec.certify.enumeration import contrasted_tables as laws
from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import RecursiveRejection, Rule, TargetMatch, TokenWise
from mmspec.core.round.tree import Tree, chain, dynamic_tree, static_tree
from tests.imagegen.rules.cases import CHAIN, TREE, WITHOUT, case, exact_settings, relaxed_settings, scores

NAMES, RELAXED = tuple(exact_settings(8)), tuple(relaxed_settings(8))
KINDS = {
    "chain": (CHAIN, WITHOUT, TokenWise()),
    "tree": (TREE, WITHOUT, RecursiveRejection()),
    "chain without a law": (CHAIN, "deterministic", TargetMatch()),
    "tree without a law": (TREE, "deterministic", TargetMatch()),
}


def judged(rule: Rule, draft: Draft, evidence: Evidence, seed: int = 7) -> tuple:
    """What a round decides: thresholds, node, path, and the law and the value behind it."""
    rule, keys = rule.rule_for(draft, evidence), Keys.of(seed, draft.batch)
    rule.check(draft)
    weights = rule.weigh(evidence, draft)
    verdict = rule.select(weights, keys.uniform(Purpose.ACCEPT, draft.tree.nodes), draft)
    law = evidence.scores if evidence.greedy else rule.residual(evidence, draft, weights, verdict.node)
    verdict = rule.resample(evidence, draft, weights, verdict, keys)
    return weights.threshold[:, 1:], verdict.node, verdict.path, law, verdict.correction


def same(rule: Rule, exact: Rule, draft: Draft, evidence: Evidence) -> bool:
    pairs = zip(judged(rule, draft, evidence), judged(exact, draft, evidence), strict=True)
    return all(torch.equal(mine, other) for mine, other in pairs)


def takes(rule: Rule, tree: Tree) -> bool:
    return not (rule.chains_only and tree.max_rank)


@pytest.mark.parametrize("name", (*NAMES, *RELAXED))
@pytest.mark.parametrize("tree", (CHAIN, TREE), ids=("chain", "tree"))
def test_a_value_that_its_record_cannot_draw_is_rejected(name: str, tree: Tree) -> None:
    rule = (exact_settings(8) | relaxed_settings(8))[name]
    if not takes(rule, tree):
        return
    draft, evidence = case(tree, WITHOUT, size=8, rows=16)
    first, row = draft.value[:, 1], torch.arange(16)
    evidence.scores[row, 0, first] = 3.0
    draft.law.scores[row, 0, first] = -torch.inf
    assert (rule.weigh(evidence, draft).threshold[:, 1] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_bit_for_bit(name: str, kind: str) -> None:
    tree, how, exact = KINDS[kind]
    rule = exact_settings(40)[name]
    if not takes(rule, tree):
        with pytest.raises(ValueError, match="expected a chain"):
            rule.check(case(tree, how)[0])
        return
    for seed in range(2):
        draft, evidence = case(tree, how, rows=128, seed=seed)
        draft.law.reused = seed > 0
        assert same(rule, exact, draft, evidence)
        draft.valid = draft.valid & (torch.rand(draft.value.shape) < 0.8)
        draft.valid[:, 0] = True
        assert same(rule, exact, draft, evidence)
        bad = torch.rand(draft.value.shape) < 0.1
        assert same(rule, exact, draft, replace(evidence, scores=evidence.scores.where(~bad[..., None], 0.0), bad=bad))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", (WITHOUT, "deterministic"))
def test_bit_for_bit_on_a_tree_per_row(name: str, how: str) -> None:
    rule = exact_settings(40)[name]
    if rule.chains_only:
        return
    rows, generator = 32, torch.Generator().manual_seed(1)
    parents = [[0] + [int(torch.randint(i, (), generator=generator)) for i in range(1, 9)] for _ in range(rows)]
    alone = [case(static_tree(parent), how, rows=1, seed=row) for row, parent in enumerate(parents)]
    tree = dynamic_tree(torch.tensor(parents), 8, 8)
    law = alone[0][0].law
    if law.scores is not None:
        law = Law(how, law.row, torch.cat([draft.law.scores for draft, _ in alone]))
    value, valid = (torch.cat([getattr(draft, name) for draft, _ in alone]) for name in ("value", "valid"))
    draft, evidence = Draft(value, tree, law, valid), Evidence(torch.cat([e.scores for _, e in alone]))
    assert same(rule, RecursiveRejection() if how == WITHOUT else TargetMatch(), draft, evidence)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_hot_distributions_and_greedy_requests_match_target_match_bit_for_bit(name: str, kind: str) -> None:
    tree, how, exact = KINDS[kind]
    rule = exact_settings(40)[name]
    if not takes(rule, tree):
        return
    draft, evidence = case(tree, how)
    assert same(rule, TargetMatch(), draft, replace(evidence, greedy=True))
    if how == WITHOUT and not tree.max_rank:  # fresh Jacobi drafts
        one_hot = torch.full_like(draft.law.scores, -torch.inf)
        one_hot[:, :-1].scatter_(2, draft.value[:, 1:, None], 0.0)
        draft.law = Law(how, draft.law.row, one_hot)
        assert same(rule, exact, draft, evidence)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RELAXED)
def test_other_settings_accept_more(name: str, kind: str) -> None:
    tree, how, exact = KINDS[kind]
    rule = relaxed_settings(40)[name]
    if not takes(rule, tree):
        return
    draft, evidence = case(tree, how, rows=512)
    mine, other = judged(rule, draft, evidence), judged(exact, draft, evidence)
    assert not torch.equal(mine[0], other[0])
    depth = [tree.depth[0, node].double().mean() for node in (mine[1], other[1])]
    assert depth[0] > depth[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("drawn", (WITHOUT, "deterministic"))
def test_enumeration_returns_the_targets_distribution(name: str, kind: str, drawn: str) -> None:
    rule = exact_settings(4)[name]
    for tree in (chain(1), chain(3), static_tree([0, 0, 0, 1, 1, 2])):
        if takes(rule, tree):
            p, q = laws(kind, 4, tree.max_depth, seed=tree.nodes)
            assert inexactness(rule, tree, p, q, drawn=drawn) < 1e-12


@pytest.mark.parametrize("name", RELAXED)
@pytest.mark.parametrize("drawn", (WITHOUT, "deterministic"))
def test_enumeration_tells_relaxed_settings(name: str, drawn: str) -> None:
    rule = relaxed_settings(4)[name]
    for tree in (chain(3), static_tree([0, 0, 0, 1, 1, 2])):
        if takes(rule, tree):
            p, q = laws("random", 4, tree.max_depth, seed=tree.nodes)
            assert inexactness(rule, tree, p, q, drawn=drawn) > 1e-3


@pytest.mark.parametrize("name", (*NAMES, *RELAXED))
def test_it_says_that_it_is_relaxed(name: str) -> None:
    rule = (exact_settings(8) | relaxed_settings(8))[name]
    assert not rule.exact and "(relaxed)" in rule.name and "Relaxed" in type(rule).__doc__


@pytest.mark.parametrize("name", RELAXED)
@pytest.mark.parametrize("kind", KINDS)
def test_values_the_target_cut_are_not_emitted(name: str, kind: str) -> None:
    tree, how, _ = KINDS[kind]
    rule = relaxed_settings(40)[name]
    if not takes(rule, tree) or name == "lantern":  # whose budget does not depend on p(x)
        return
    p, q = scores(256, tree, 40)
    draft, evidence = case(tree, how, rows=256)
    _, node, path, _, correction = judged(rule, draft, evidence)
    rows = torch.arange(256)
    own = p.softmax(-1)[rows[:, None], tree.parent[0][path], draft.value.gather(1, path)]
    assert (own[path > 0] > 0).all()
    assert (p.softmax(-1)[rows, node, correction] > 0).all()

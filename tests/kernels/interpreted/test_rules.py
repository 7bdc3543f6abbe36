"""The exact rules are exact through the kernels: enumeration, and draws with the real keys."""

from __future__ import annotations

import pytest
import torch

from mmspec.certify.enumeration import contrasted_tables as laws
from mmspec.certify.enumeration import inexactness
from mmspec.certify.mutants import Lenient, NoResidual
from mmspec.core.drafting.merge import with_copied_paths
from mmspec.core.round.draft import Draft, Drawn, Evidence, Law
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.rules import BlockVerification, KSeq, RecursiveRejection, Rule, TargetMatch, TokenWise, Traversal
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.kernels.counter import uniforms_reference
from mmspec.kernels.log_law import LogLaw
from mmspec.kernels.residual_sampling import residual_sample_reference
from tests.core.round.rules.copied import copied_inexactness, draft_inexactness
from tests.core.round.rules.simulation import markov_draft
from tests.core.round.rules.test_exact import impossible
from tests.core.round.rules.test_second_tree import pairs, sources

TREE = static_tree([0, 0, 0])
CASES = [
    (TokenWise(), chain(2), "without_replacement"),
    (BlockVerification(), chain(2), "without_replacement"),
    (RecursiveRejection(), TREE, "without_replacement"),
    (Traversal(), static_tree([0, 0, 0, 1]), "without_replacement"),
    (KSeq(), TREE, "with_replacement"),
    (TargetMatch(), TREE, "deterministic"),
]


@pytest.mark.parametrize(("rule", "tree", "drawn"), CASES, ids=[case[0].name for case in CASES])
def test_enumeration_is_exact(rule: Rule, tree: Tree, drawn: Drawn) -> None:
    p, q = laws("both with zeros", 3, tree.max_depth, seed=1)
    assert inexactness(rule, tree, p, q, drawn=drawn) < 1e-12


@pytest.mark.parametrize(("rule", "tree", "drawn"), CASES[:-1], ids=[case[0].name for case in CASES[:-1]])
def test_a_value_that_its_record_cannot_draw_is_rejected(rule: Rule, tree: Tree, drawn: Drawn) -> None:
    impossible(rule, drawn, chains_only=not tree.max_rank)


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_enumeration_with_a_copied_path_is_exact(rule: Rule) -> None:
    p, _ = laws("both with zeros", 3, 2, seed=1)
    _, q = laws("both with zeros", 3, 1, seed=2)
    assert copied_inexactness(rule, TREE, p, q, (1, 2)) < 1e-12


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_enumeration_of_two_drawn_sources_is_exact(rule: Rule) -> None:
    p, _ = laws("random", 3, 2, seed=3)
    draft, chance = pairs((chain(1), chain(2)), sources("random")["(q1, q2)"])
    assert draft_inexactness(rule, draft, chance, p) < 1e-12


@pytest.mark.parametrize("rule", (RecursiveRejection(), Traversal()), ids=lambda rule: rule.name)
def test_a_rejected_copy_never_wins_the_race(rule: Rule) -> None:
    rows, copied = 12, 2
    scores, drawn = torch.zeros(rows, 3, 3), torch.tensor([[[2.0, 0, 0]]]).repeat(rows, 1, 1)
    value, law = torch.zeros(rows, 2, dtype=torch.long), Law("without_replacement", torch.tensor([0, -1]), drawn)
    draft = Draft(value, chain(1), law)
    draft = with_copied_paths(draft, [[[copied]]] * rows, [False] * rows)
    evidence, keys = Evidence(scores), Keys.of(5, rows)
    weights = rule.weigh(evidence, draft)
    root, leaf = torch.zeros(rows, dtype=torch.long), torch.full((rows,), 2)
    assert (
        rule.draw(evidence, draft, weights, root, keys) == 1
    ).all()  # token 0 was drawn too often, token 2 was copied
    assert (rule.draw(evidence, draft, weights, leaf, keys) == copied).any()


@pytest.mark.parametrize("mutant", (Lenient, NoResidual))
def test_mutants_fail(mutant: type[Rule]) -> None:
    tree = chain(1)
    p, q = laws("random", 3, tree.max_depth, seed=1)
    assert inexactness(mutant(TokenWise()), tree, p, q) > 1e-3


@pytest.mark.parametrize(("rule", "tree", "drawn"), CASES, ids=[case[0].name for case in CASES])
def test_tokens_after_a_rejection_win_the_residual_race(rule: Rule, tree: Tree, drawn: Drawn) -> None:
    rows, size = 3, 5
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(size, size, generator=generator, dtype=torch.float64).softmax(-1)
    q = (3 * torch.rand(size, size, generator=generator, dtype=torch.float64)).softmax(-1)
    keys = Keys.of(3, rows)
    keys.round = 7
    draft = markov_draft(tree, torch.zeros(rows, dtype=torch.long), q, keys, drawn, q)
    evidence = Evidence(p.log().float()[draft.value])
    weights = rule.weigh(evidence, draft)
    assert isinstance(weights.p, LogLaw)
    node = torch.tensor([0, 1, 0])
    law = rule.residual(evidence, draft, weights, node)
    lanes = uniforms_reference(keys.seeds, keys.stream(Purpose.RESIDUAL), size)
    assert torch.equal(rule.draw(evidence, draft, weights, node, keys), residual_sample_reference(law, law, lanes))

"""Rules by name, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.draft import Draft, Evidence, Law, root_only
from mmspec.core.round.rules import (
    BestExact,
    BlockVerification,
    GaussianBlock,
    RecursiveRejection,
    Reflection,
    Rule,
    TargetMatch,
    TokenWise,
    Traversal,
    resolve,
)
from mmspec.core.round.tree import Tree, chain, static_tree

TREE, CHAIN = static_tree([0, 0, 0]), chain(2)
NAMES = ("exact", "token", "block", "traversal", "match", "recursive", "recursive_replacement", "kseq", "reflection",
         "gaussian_block")  # fmt: skip
SCORES = torch.zeros(1, 3, 4)


def draft(tree: Tree, drawn: str, kind: str = "categorical") -> Draft:
    row = torch.arange(3)
    if kind == "gaussian":
        return Draft(torch.zeros(1, 3, 2), tree, Law(drawn, row, mean=torch.zeros(1, 3, 2), scale=torch.ones(1, 3, 1)))
    law = Law(drawn, row, SCORES) if kind == "categorical" else Law(drawn)
    return Draft(torch.zeros(1, 3, dtype=torch.long), tree, law)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_an_exact_rule_of_that_name(name: str) -> None:
    rule = resolve(name, greedy=False)
    assert rule.name == name and rule.exact


def test_unknown_rules_are_refused_with_the_known_rules() -> None:
    with pytest.raises(ValueError, match="expected one of exact, token, block.*got 'fast'"):
        resolve("fast", greedy=False)
    with pytest.raises(ValueError, match="got int"):
        resolve(3, greedy=False)


def test_greedy_requests_match_the_target() -> None:
    for name in NAMES[:-2]:
        assert isinstance(resolve(name, greedy=True), TargetMatch)
    assert isinstance(resolve("reflection", greedy=True), Reflection)


def test_a_rule_object_is_used_unchanged_unless_greedy_makes_it_target_match() -> None:
    class Relaxed(TargetMatch):
        exact = False

    mine, relaxed = TokenWise(), Relaxed()
    assert resolve(mine, greedy=False) is mine
    assert resolve(relaxed, greedy=True) is relaxed
    assert isinstance(resolve(mine, greedy=True), TargetMatch)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (draft(CHAIN, "without_replacement"), BlockVerification),
        (draft(CHAIN, "with_replacement"), BlockVerification),
        (draft(TREE, "without_replacement"), Traversal),
        (draft(TREE, "with_replacement"), RecursiveRejection),
        (draft(TREE, "deterministic", "onehot"), TargetMatch),
        (draft(CHAIN, "none", "none"), TargetMatch),
        (root_only(torch.zeros(1, dtype=torch.long)), TargetMatch),
    ],
)
def test_exact_takes_the_best_proven_rule(made: Draft, expected: type[Rule]) -> None:
    chosen = BestExact().rule_for(made, Evidence(SCORES))
    assert type(chosen) is expected
    chosen.check(made)
    assert isinstance(BestExact().rule_for(made, Evidence(SCORES, greedy=True)), TargetMatch)


def reused(tree: Tree, drawn: str = "without_replacement") -> Draft:
    made = draft(tree, drawn)
    made.law.reused = True
    return made


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (reused(CHAIN), "token"),
        (reused(TREE), "recursive"),
        (reused(TREE, "with_replacement"), "recursive_replacement"),
    ],
)
def test_drafts_that_live_on_are_judged_from_the_root_down(made: Draft, name: str) -> None:
    chosen = BestExact().rule_for(made, Evidence(SCORES))
    assert chosen.name == name and not chosen.looks_ahead
    chosen.check(made)


@pytest.mark.parametrize(
    ("name", "made"), [("block", reused(CHAIN)), ("traversal", reused(CHAIN)), ("traversal", reused(TREE))]
)
def test_rules_that_look_ahead_refuse_drafts_that_live_on(name: str, made: Draft) -> None:
    with pytest.raises(ValueError, match=f"rule '{name}': expected drafts drawn anew every round"):
        resolve(name, greedy=False).check(made)


def test_exact_takes_block_verification_for_vectors_and_reflection_where_they_live_on() -> None:
    evidence = Evidence(mean=torch.zeros(1, 3, 2), scale=torch.ones(1, 3, 1))
    made = draft(CHAIN, "without_replacement", "gaussian")
    assert isinstance(BestExact().rule_for(made, evidence), GaussianBlock)
    with pytest.raises(ValueError, match="rule 'gaussian_block': expected drafts drawn anew"):
        made.law.reused = True
        GaussianBlock().check(made)
    for other in (made, root_only(torch.zeros(1, 2))):
        assert isinstance(BestExact().rule_for(other, evidence), Reflection)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("token", draft(TREE, "without_replacement")),
        ("block", draft(TREE, "without_replacement")),
        ("block", draft(CHAIN, "deterministic", "onehot")),
        ("traversal", draft(TREE, "with_replacement")),
        ("recursive", draft(TREE, "with_replacement")),
        ("recursive_replacement", draft(TREE, "without_replacement")),
        ("kseq", draft(TREE, "without_replacement")),
        ("kseq", draft(TREE, "none", "none")),
        ("match", draft(CHAIN, "without_replacement", "gaussian")),
        ("reflection", draft(CHAIN, "without_replacement")),
        ("reflection", draft(TREE, "without_replacement", "gaussian")),
        ("gaussian_block", draft(CHAIN, "without_replacement")),
        ("gaussian_block", draft(TREE, "without_replacement", "gaussian")),
    ],
)
def test_rules_refuse_drafts_they_are_not_proven_for(name: str, made: Draft) -> None:
    with pytest.raises(ValueError, match=f"rule '{name}': expected"):
        resolve(name, greedy=False).check(made)


@pytest.mark.parametrize("name", NAMES[1:8])
@pytest.mark.parametrize("drawn", ("without_replacement", "with_replacement"))
def test_a_chain_drawn_with_or_without_replacement_is_the_same(name: str, drawn: str) -> None:
    resolve(name, greedy=False).check(draft(CHAIN, drawn))

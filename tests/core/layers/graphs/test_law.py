"""The rules' laws through replays: a verdict that was recorded on other drafts is exact on these, by enumeration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import contrasted_tables as laws
from mmspec.certify.enumeration import inexactness
from mmspec.certify.mutants import Lenient, NoResidual
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict
from mmspec.core.round.rules import BlockVerification, Rule, TargetMatch, TokenWise, Traversal
from mmspec.core.round.rules.base import Weights
from mmspec.core.round.tree import Tree, chain, static_tree
from tests.core.layers.graphs.recorded import recorded

CPU = torch.device("cpu")
CASES = [
    (TokenWise(), chain(2), "without_replacement"),
    (BlockVerification(), chain(2), "without_replacement"),
    (BlockVerification(), chain(3), "without_replacement"),
    (TargetMatch(), chain(2), "deterministic"),
    (TargetMatch(), static_tree([0, 0, 0]), "deterministic"),
    (Traversal(), static_tree([0, 0, 0, 1]), "without_replacement"),
]


class Replayed(Rule):
    """A rule whose weights, choices and residuals come out of replays. Each was recorded on the rows in another order, so
    that a number which the recording kept would show. Rounds know no rows without failures, so evidence has them noted."""

    proven_for = TargetMatch.proven_for

    def __init__(self, rule: Rule):
        self.rule, self.name, self.exact = rule, rule.name, rule.exact

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        law = draft.law
        given = [draft.value, draft.valid, evidence.scores, torch.zeros_like(draft.valid), law.scores]

        def weigh(value: Tensor, valid: Tensor, scores: Tensor, bad: Tensor, q: Tensor | None) -> Weights:
            known = Law(law.drawn, law.row, q)
            return self.rule.weigh(Evidence(scores, bad=bad), Draft(value, draft.tree, known, valid))

        return replayed(weigh, given)

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        def select(threshold: Tensor, uniform: Tensor, valid: Tensor) -> Verdict:
            known = Draft(draft.value, draft.tree, draft.law, valid)
            return self.rule.select(Weights(threshold, weights.order), uniform, known)

        return replayed(select, [weights.threshold, uniform, draft.valid])

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        def residual(node: Tensor, valid: Tensor, *kept: Tensor) -> Tensor:
            known = Weights(weights.threshold, weights.order, *kept)
            seen = Evidence(evidence.scores, bad=torch.zeros_like(valid))
            return self.rule.residual(seen, Draft(draft.value, draft.tree, draft.law, valid), known, node)

        return replayed(residual, [node, draft.valid, weights.p, weights.q, weights.alpha, weights.beta])


def replayed(function, given: list[Tensor | None]):
    """What the function makes of its arguments, by a replay of what it made of them in another order."""
    homes = [None if entry is None else entry.roll(1, 0).clone() for entry in given]
    made = []
    replay = recorded(lambda: made.append(function(*homes)), CPU)
    for home, entry in zip(homes, given, strict=True):
        if entry is not None:
            home.copy_(entry)
    replay()
    return made[0]


@pytest.mark.parametrize(("rule", "tree", "drawn"), CASES, ids=[f"{rule.name} {tree.nodes}" for rule, tree, _ in CASES])
@pytest.mark.parametrize("kind", ("random", "both with zeros", "far"))
def test_enumeration_is_exact(rule: Rule, tree: Tree, drawn: str, kind: str) -> None:
    p, q = laws(kind, 3, tree.max_depth, seed=1)
    assert inexactness(Replayed(rule), tree, p, q, drawn=drawn) < 1e-12


@pytest.mark.parametrize("mutant", (Lenient, NoResidual))
def test_mutants_fail(mutant: type[Rule]) -> None:
    p, q = laws("random", 3, 1, seed=1)
    assert inexactness(Replayed(mutant(TokenWise())), chain(1), p, q) > 1e-3


def test_a_replay_that_kept_a_draft_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = laws("random", 3, 2, seed=1)
    law = BlockVerification.weigh
    kept = {}

    def stale(self, evidence, draft):
        value = torch.tensor(kept.setdefault("value", draft.value.tolist()))
        return law(self, evidence, Draft(value, draft.tree, draft.law, draft.valid))

    monkeypatch.setattr(BlockVerification, "weigh", stale)
    assert inexactness(Replayed(BlockVerification()), chain(2), p, q) > 1e-3

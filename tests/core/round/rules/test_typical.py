"""Typical acceptance keeps what the public code keeps, says that it is relaxed, and has settings that are exact."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.certify.enumeration import LAWS, as_inputs, every_draft
from mmspec.certify.enumeration import contrasted_tables as laws
from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.rules import BestExact, TargetMatch, resolve
from mmspec.core.round.rules.typical import TypicalAcceptance
from mmspec.core.round.tree import chain, static_tree
from tests.core.round.rules.cases import CHAINS, TREES
from tests.parity import case

PLAIN = TypicalAcceptance(threshold=1.0, alpha=math.inf)


def test_it_says_that_it_is_relaxed_and_is_nobodys_default() -> None:
    assert not TypicalAcceptance.exact and "relaxed" in TypicalAcceptance.name
    for greedy in (True, False):
        assert not isinstance(resolve("exact", greedy=greedy), TypicalAcceptance)
        assert isinstance(resolve(TypicalAcceptance(), greedy=greedy), TypicalAcceptance)
    for setting in (dict(threshold=0.0), dict(alpha=-1.0)):
        with pytest.raises(ValueError, match="above 0"):
            TypicalAcceptance(**setting)


@pytest.mark.parametrize("kind", LAWS)
def test_the_strictest_setting_is_exact(kind: str) -> None:
    for name, tree in (CHAINS | TREES).items():
        p, q = laws(kind, 3, tree.max_depth, seed=len(name))
        draft, evidence = as_inputs(every_draft(tree, q, "without_replacement"), tree, p, q, "without_replacement")
        weights = PLAIN.weigh(evidence, draft)
        verdict = PLAIN.select(weights, torch.zeros(draft.value.shape), draft)
        # nothing is kept, whatever was drafted, and the value that follows the root has the target's own law
        assert (verdict.node == 0).all() and (verdict.depth == 0).all()
        law = PLAIN.residual(evidence, draft, weights, verdict.node)
        torch.testing.assert_close(law, p[0].expand_as(law), atol=1e-12, rtol=0)


def test_the_default_changes_the_distribution() -> None:
    scores = torch.tensor([[[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]])
    draft = Draft(torch.tensor([[0, 1]]), chain(1), Law("deterministic"))
    rule, evidence = TypicalAcceptance(), Evidence(scores=scores)
    assert rule.weigh(evidence, draft).threshold[0, 1] == 1  # exact rules keep it in 24 of 100 rounds


def test_greedy_requests_are_judged_exactly() -> None:
    tree = static_tree([0, 0, 0, 1, 1, 2, 4])
    draft = Draft(torch.randint(3, (50, 7)), tree, Law("deterministic"))
    evidence = Evidence(scores=torch.randn(50, 7, 3), greedy=True)
    typical, match = TypicalAcceptance().rule_for(draft, evidence), BestExact().rule_for(draft, evidence)
    assert isinstance(typical, TargetMatch) and isinstance(match, TargetMatch)


def test_undrawn_nodes_are_never_kept() -> None:
    tree, keep = static_tree([0, 0, 0, 1, 1, 2, 4]), TypicalAcceptance(1e-9, 1e-9)
    draft = Draft(torch.randint(3, (60, 7)), tree, Law("deterministic"), torch.rand(60, 7) < 0.6)
    draft.valid[:, 0] = True
    evidence = Evidence(scores=torch.randn(60, 7, 3))
    weights = keep.weigh(evidence, draft)
    verdict = keep.select(weights, torch.rand(60, 7), draft)
    reach = [max(d for n, d in enumerate(tree.depth[0].tolist()) if row[tree.path[0, n]].all()) for row in draft.valid]
    assert verdict.depth.tolist() == reach
    assert draft.valid.gather(1, verdict.path).all()


@pytest.mark.parametrize("settings, name", (((0.09, 0.3), "generate"), ((0.3, 0.09), "function")))
@pytest.mark.parametrize("number", range(8))
def test_the_chosen_path_is_the_public_codes(settings: tuple[float, float], name: str, number: int) -> None:
    public = case("vlm/medusa_heads")
    logits, table = public[f"typical.{number}.logits"] / 0.7, public[f"typical.{number}.candidates"]
    # the case's paths each have a root law of their own: they hang below a root that finds all four of them typical
    parents, value, scores = [0], [0], [torch.tensor([0.0] * 4 + [-torch.inf] * 12)]
    for row in range(4):
        for column in range(4):
            parents.append(len(parents) - 1 if column else 0)
            value.append(int(table[row, column]) if column else row)
            scores.append(logits[row, column])
    draft = Draft(torch.tensor([value]), static_tree(parents), Law("deterministic"))
    rule, evidence = TypicalAcceptance(*settings), Evidence(scores=torch.stack(scores)[None])
    verdict = rule.select(rule.weigh(evidence, draft), torch.rand(1, 17), draft)
    assert int(verdict.depth) - 1 == int(public[f"typical.{number}.{name}.accept"])
    assert (int(verdict.node) - 1) // 4 == int(public[f"typical.{number}.{name}.best"])

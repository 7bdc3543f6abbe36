"""Fuzzy acceptance emits q where the distributions are close and p elsewhere, and says that it is relaxed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import (
    LAWS,
    Tables,
    as_inputs,
    contrasted_tables,
    enumerate_rule,
    every_draft,
    joint_law,
    random_tables,
    target_law,
    total_variation,
)
from mmspec.core.round.draft import Draft, Evidence, Law, expand_tree
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import verify
from mmspec.core.round.rules import RecursiveRejection, TargetMatch, TokenWise, resolve
from mmspec.core.round.rules.base import UnsupportedCombination
from mmspec.core.round.rules.fuzzy import _DIVERGENCES, Fuzzy
from mmspec.core.round.rules.relaxed import accepting
from mmspec.core.round.tree import Tree, chain, static_tree
from tests.core.round.rules.cases import CHAINS, TREES

WITHOUT = "without_replacement"
FAN = static_tree([0, 0, 0, 1, 1, 2])


def mixed(p: Tables, q: Tables, rule: Fuzzy) -> list[Tensor]:
    """The tables of the text: q where it is close to p, p elsewhere."""
    close = [_DIVERGENCES[rule.divergence](a, b) <= rule.threshold for a, b in zip(p, q, strict=False)]
    return [torch.where(near[:, None], b, a) for near, a, b in zip(close, p, q, strict=False)] + [p[-1]]


def middling(p: Tables, q: Tables, divergence: str) -> float:
    """A threshold that about half of the contexts pass."""
    apart = torch.cat([_DIVERGENCES[divergence](a, b) for a, b in zip(p, q, strict=False)])
    return float(apart[apart.isfinite()].median()) + 1e-9 if apart.isfinite().any() else 0.1


@pytest.mark.parametrize("divergence", _DIVERGENCES)
@pytest.mark.parametrize("tree", (chain(3), FAN), ids=("chain", "tree"))
def test_a_drafted_position_has_the_drafters_law_where_both_are_close(tree: Tree, divergence: str) -> None:
    for kind in LAWS:
        p, q = contrasted_tables(kind, 3, tree.max_depth, seed=4)
        rule = Fuzzy(middling(p, q, divergence), divergence)
        law = mixed(p, q, rule)
        seen = enumerate_rule(rule, tree, p, q)
        assert total_variation(joint_law(seen, law), target_law(law)) < 1e-12
        if kind in ("random", "far"):
            assert total_variation(joint_law(seen, p), target_law(p)) > 1e-3


class AtTheNodeItself(Fuzzy):
    """The divergence behind a node decides about the node, instead of the divergence before it."""

    def relax(self, weights, draft, live):
        return accepting(weights, draft, self.divergence_at_parents(weights, draft) <= self.threshold, live)


class AtTheGrandparent(Fuzzy):
    """The divergence before the parent decides."""

    def relax(self, weights, draft, live):
        parent = expand_tree(draft.tree.parent, draft.batch)
        close = self.divergence_at_parents(weights, draft) <= self.threshold
        return accepting(weights, draft, close.gather(1, parent).gather(1, parent), live)


@pytest.mark.parametrize("mutant", (AtTheNodeItself, AtTheGrandparent))
def test_the_divergence_of_another_node_shows(mutant: type[Fuzzy]) -> None:
    tree = chain(3)
    p, q = contrasted_tables("random", 3, 3, seed=4)
    wrong = mutant(middling(p, q, "js"))
    law = mixed(p, q, wrong)
    assert total_variation(joint_law(enumerate_rule(wrong, tree, p, q), law), target_law(law)) > 1e-3


@pytest.mark.default_cells("both with zeros", "far")
@pytest.mark.parametrize("kind", LAWS)
def test_below_zero_it_is_the_exact_rule_bit_for_bit(kind: str) -> None:
    for name, tree in (CHAINS | TREES).items():
        p, q = contrasted_tables(kind, 3, tree.max_depth, seed=len(name))
        draft, evidence = as_inputs(every_draft(tree, q, WITHOUT), tree, p, q, WITHOUT)
        exact, keys = RecursiveRejection() if tree.max_rank else TokenWise(), Keys.of(3, draft.batch)
        (_, own), (_, other) = (verify(rule, draft, evidence, keys) for rule in (Fuzzy(-1), exact))
        assert torch.equal(own.path, other.path) and torch.equal(own.correction, other.correction)


def test_what_it_pays_is_the_total_variation_of_the_accepted_positions() -> None:
    p, q = random_tables(3, 3, 2), random_tables(3, 2, 52)
    draft, evidence = as_inputs(every_draft(chain(2), q, WITHOUT), chain(2), p, q, WITHOUT)
    assert Fuzzy(-1.0).weigh(evidence, draft).paid is None
    first = float(_DIVERGENCES["js"](p[0][0], q[0][0])) + 1e-9  # only the first position passes
    for threshold in (0.05, first, math.inf):
        rule = Fuzzy(threshold)
        paid = rule.weigh(evidence, draft).paid
        _, verdict = verify(rule, draft, evidence, Keys.of(3, draft.batch))
        for row in range(draft.batch):
            code = [0, int(draft.value[row, 1])]
            for depth, prefix in enumerate(code):
                a, b = p[depth][prefix], q[depth][prefix]
                near = _DIVERGENCES["js"](a, b) <= threshold
                expected = (a - b).abs().sum() / 2 if near else torch.zeros(())
                torch.testing.assert_close(paid[row, depth + 1], expected.double(), atol=1e-12, rtol=0)
            accepted = int(verdict.depth[row])
            torch.testing.assert_close(verdict.paid[row], paid[row, 1 : accepted + 1].sum(), atol=1e-12, rtol=0)
        assert threshold != first or len(set(verdict.depth.tolist())) == 2
    most = middling(p, q, "tv")
    assert 0 < Fuzzy(most, "tv").weigh(evidence, draft).paid[:, 1:].max() <= most
    assert verify(TokenWise(), draft, evidence, Keys.of(3, draft.batch))[1].paid is None


def test_divergences_are_the_textbooks() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5])
    assert float(_DIVERGENCES["kl"](q, p)) == pytest.approx(math.log(2))
    assert float(_DIVERGENCES["kl"](p, q)) == math.inf
    assert float(_DIVERGENCES["tv"](p, q)) == pytest.approx(0.5)
    one, other = torch.eye(2)
    assert float(_DIVERGENCES["js"](one, other)) == pytest.approx(math.log(2))


def test_undrawn_and_broken_nodes_are_never_accepted() -> None:
    draft = Draft(torch.randint(3, (40, 4)), chain(3), Law(WITHOUT, torch.tensor([0, 1, 2, -1]), torch.zeros(40, 3, 3)))
    draft.valid = torch.rand(40, 4) < 0.7
    bad = torch.rand(40, 4) < 0.2
    weights = Fuzzy(math.inf).weigh(Evidence(torch.randn(40, 4, 3), bad=bad), draft)
    good = draft.valid[:, 1:].cumprod(-1) * (~bad[:, :3]).cumprod(-1)
    assert torch.equal(weights.threshold[:, 1:], good.float())


def test_it_says_that_it_is_relaxed_and_refuses_what_it_cannot_read() -> None:
    rule = resolve("fuzzy:threshold=0.1,divergence=tv", greedy=False, domain="vlm")
    assert (rule.threshold, rule.divergence, rule.exact) == (0.1, "tv", False) and "relaxed" in rule.name
    picked = Draft(torch.zeros(1, 2, dtype=torch.long), chain(1), Law("deterministic"))
    with pytest.raises(UnsupportedCombination, match="fuzzy.*onehot"):
        verify(rule, picked, Evidence(torch.zeros(1, 2, 3)), Keys.of(0, 1))
    assert isinstance(rule.rule_for(picked, Evidence(torch.zeros(1, 2, 3), greedy=True)), TargetMatch)
    with pytest.raises(ValueError, match="divergence.*js.*wasserstein"):
        Fuzzy(0.1, "wasserstein")

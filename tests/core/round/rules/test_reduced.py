"""Laws over few values, shared by all nodes or of each node: judged as if they were spread over all, without being spread."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.certify.enumeration import contrasted_tables, inexactness
from mmspec.core.round.draft import Draft, Evidence, Law
from mmspec.core.round.rules import BlockVerification, KSeq, RecursiveRejection, Rule, TokenWise, Traversal
from mmspec.core.round.tree import Tree, chain, static_tree
from mmspec.kernels.law import mass_at
from mmspec.kernels.reduced_law import ReducedLaw, spread_scores
from tests.core.round.rules.cases import WITH, WITHOUT
from tests.core.round.rules.drafting import drawn

TREE, CHAIN, VOCAB = static_tree([0, 0, 0, 1, 1, 3, 2]), chain(4), 30
SMALL = static_tree([0, 0, 0, 1, 1])  # for enumeration
IDS = torch.tensor([0, 3, 4, 9, 17, 29])
CASES = [
    (TokenWise(), CHAIN, WITHOUT),
    (BlockVerification(), CHAIN, WITHOUT),
    (Traversal(), TREE, WITHOUT),
    (Traversal(), CHAIN, WITHOUT),
    (RecursiveRejection(), TREE, WITHOUT),
    (RecursiveRejection(replacement=True), TREE, WITH),
    (KSeq(), TREE, WITH),
]
every_rule = pytest.mark.parametrize(
    ("rule", "tree", "how"), CASES, ids=[f"{rule.name}-{tree.nodes}" for rule, tree, _ in CASES]
)


def pair(tree: Tree, how: str, stray: bool = False, of_nodes: bool = False) -> tuple[Draft, Draft, Evidence]:
    """A draft whose law is spread, the same draft with the law of its own values, and float64 evidence.

    stray: a node of each row holds a value that the drafter does not know.
    of_nodes: each law has its own values in any order, and one column less in every second law.
    """
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(40, tree.nodes, VOCAB, generator=generator, dtype=torch.float64) * 2
    ids = IDS
    if of_nodes:
        ids = torch.rand(40, tree.nodes, VOCAB, generator=generator).topk(len(IDS)).indices
        ids[:, ::2, 1] = -1
    q = p[..., IDS] + torch.randn(40, tree.nodes, len(IDS), generator=generator, dtype=torch.float64)
    q = q.masked_fill(ids < 0, -torch.inf)
    spread, evidence = drawn(tree, p, spread_scores(q, ids, VOCAB), how)
    if stray:
        spread.value[:, 2] = 5
    own = replace(spread, law=Law(how, spread.law.row, q, ids=ids))
    return spread, own, evidence


def sparse(draft: Draft, misplaced: bool = False, rest: bool = False) -> Draft:
    """The draft with laws over the values that have a probability, each law with its own values.

    misplaced: all laws have the values of the root's law.   rest: the least likely value joins them, with a tenth.
    """
    scores, ids = draft.law.scores.sort(-1, descending=True)
    ids = ids[:, :1].expand_as(ids) if misplaced else ids.masked_fill(scores.isneginf(), -1)
    if rest:
        last = (ids >= 0).sum(-1, keepdim=True)
        every = draft.law.scores.argmin(-1, keepdim=True)
        ids, scores = (torch.nn.functional.pad(x, (0, 1), value=v) for x, v in ((ids, -1), (scores, -torch.inf)))
        free = last < draft.law.scores.shape[-1]
        ids.scatter_(-1, last, torch.where(free, every, ids.gather(-1, last)))
        scores.scatter_(-1, last, torch.where(free, torch.tensor(0.1).double().log(), scores.gather(-1, last)))
    return replace(draft, law=replace(draft.law, scores=scores, ids=ids))


def recorded_as(rule: Rule, change: Callable[[Draft], Draft]) -> Rule:
    """The rule over drafts whose record is changed."""
    other = copy.copy(rule)
    other.weigh = lambda evidence, draft: rule.weigh(evidence, change(draft))
    return other


@every_rule
@pytest.mark.parametrize("kind", ["q with zeros", "both with zeros", "far"])
def test_laws_of_each_node_are_exact_by_enumeration(rule: Rule, tree: Tree, how: str, kind: str) -> None:
    tree = SMALL if tree is TREE else chain(3)
    p, q = contrasted_tables(kind, 3, tree.max_depth, 5)
    assert inexactness(recorded_as(rule, sparse), tree, p, q, drawn=how) < 1e-12


@pytest.mark.parametrize("how", [dict(misplaced=True), dict(rest=True)], ids=["misplaced", "not renormalised"])
@pytest.mark.parametrize("rule", [Traversal(), RecursiveRejection()], ids=lambda rule: rule.name)
def test_a_wrong_record_is_noticed_by_enumeration(rule: Rule, how: dict[str, bool]) -> None:
    p, q = contrasted_tables("q with zeros", 3, SMALL.max_depth, 5)
    wrong = recorded_as(rule, lambda draft: sparse(draft, **how))
    assert inexactness(wrong, SMALL, p, q) > 1e-3


@every_rule
@pytest.mark.parametrize("of_nodes", [False, True])
@pytest.mark.parametrize("stray", [False, True])
def test_thresholds_and_residuals_match_the_spread_distribution(
    rule: Rule, tree: Tree, how: str, stray: bool, of_nodes: bool
) -> None:
    spread, own, evidence = pair(tree, how, stray, of_nodes)
    wide, narrow = rule.weigh(evidence, spread), rule.weigh(evidence, own)
    assert isinstance(narrow.q, ReducedLaw) and narrow.q.mass.shape[-1] == len(IDS)
    torch.testing.assert_close(narrow.threshold, wide.threshold, atol=1e-12, rtol=0)
    for node in range(tree.nodes):
        at = torch.full((40,), node)
        found, expected = (
            residual / residual.sum(-1, keepdim=True)
            for residual in (rule.residual(evidence, own, narrow, at), rule.residual(evidence, spread, wide, at))
        )
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_a_rest_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    spread, own, evidence = pair(TREE, WITHOUT)
    expected = Traversal().weigh(evidence, spread).threshold
    lumped = ReducedLaw.lumped

    def without_rest(law: ReducedLaw, p: Tensor, row: Tensor) -> Tensor:
        found = lumped(law, p, row)
        found[..., -1] = 0
        return found

    monkeypatch.setattr(ReducedLaw, "lumped", without_rest)
    assert not torch.allclose(Traversal().weigh(evidence, own).threshold, expected, atol=1e-3)


def test_probabilities_of_values_that_the_drafter_lacks_are_zero() -> None:
    law = ReducedLaw(torch.rand(2, 3, len(IDS)), IDS, VOCAB)
    token, row = torch.arange(VOCAB).repeat(2, 1), torch.ones(VOCAB, dtype=torch.long)
    found = mass_at(law, row, token)
    torch.testing.assert_close(found, mass_at(law.dense(), row, token))
    assert int((found > 0).sum()) == 2 * len(IDS)


@pytest.mark.parametrize("ids", [IDS[:-1], IDS.expand(40, 2, -1)], ids=["of all", "of each"])
def test_a_record_of_other_ids_is_refused(ids: Tensor) -> None:
    _, own, evidence = pair(TREE, WITHOUT)
    own.law = replace(own.law, ids=ids)
    with pytest.raises(ValueError, match=r"q record: .* got 6"):
        Traversal().weigh(Evidence(evidence.scores), own)

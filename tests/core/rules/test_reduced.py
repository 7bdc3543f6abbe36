"""A drafter with a reduced vocabulary: its law is judged as if it were spread over all values, without being spread."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmspec.core.draft import Draft, Evidence, Law
from mmspec.core.rules import BlockVerification, KSeq, RecursiveRejection, Rule, TokenWise, Traversal
from mmspec.core.tree import Tree, chain, static_tree
from mmspec.kernels.law import mass_at
from mmspec.kernels.reduced_law import ReducedLaw, spread_scores
from tests.core.rules.cases import WITH, WITHOUT
from tests.core.rules.drafting import drawn

TREE, CHAIN, VOCAB = static_tree([0, 0, 0, 1, 1, 3, 2]), chain(4), 30
IDS = torch.tensor([0, 3, 4, 9, 17, 29])
CASES = [
    (TokenWise(), CHAIN, WITHOUT), (BlockVerification(), CHAIN, WITHOUT), (Traversal(), TREE, WITHOUT),
    (Traversal(), CHAIN, WITHOUT), (RecursiveRejection(), TREE, WITHOUT), (RecursiveRejection(replacement=True), TREE, WITH),
    (KSeq(), TREE, WITH),
]  # fmt: skip
every_rule = pytest.mark.parametrize(
    ("rule", "tree", "how"), CASES, ids=[f"{rule.name}-{tree.nodes}" for rule, tree, _ in CASES]
)


def pair(tree: Tree, how: str, stray: bool = False) -> tuple[Draft, Draft, Evidence]:
    """A draft whose law is spread, the same draft with the law of its own values, and float64 evidence.

    stray: a node of each row holds a value that the drafter does not know.
    """
    generator = torch.Generator().manual_seed(1)
    p = torch.randn(40, tree.nodes, VOCAB, generator=generator, dtype=torch.float64) * 2
    q = p[..., IDS] + torch.randn(40, tree.nodes, len(IDS), generator=generator, dtype=torch.float64)
    spread, evidence = drawn(tree, p, spread_scores(q, IDS, VOCAB), how)
    if stray:
        spread.value[:, 2] = 5
    own = replace(spread, law=Law(how, spread.law.row, q, ids=IDS))
    return spread, own, evidence


@every_rule
@pytest.mark.parametrize("stray", [False, True])
def test_thresholds_and_residuals_match_the_spread_distribution(rule: Rule, tree: Tree, how: str, stray: bool) -> None:
    spread, own, evidence = pair(tree, how, stray)
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

    def without_rest(law: ReducedLaw, p: torch.Tensor) -> torch.Tensor:
        found = lumped(law, p)
        found[..., -1] = 0
        return found

    monkeypatch.setattr(ReducedLaw, "lumped", without_rest)
    assert not torch.allclose(Traversal().weigh(evidence, own).threshold, expected, atol=1e-3)


def test_probabilities_of_values_that_the_drafter_lacks_are_zero() -> None:
    law = ReducedLaw(torch.rand(2, 3, len(IDS)), IDS, VOCAB)
    token, row = torch.arange(VOCAB).repeat(2, 1), torch.ones(VOCAB, dtype=torch.long)
    found = mass_at(law, row, token)
    torch.testing.assert_close(found, mass_at(law.spread(law.mass), row, token))
    assert int((found > 0).sum()) == 2 * len(IDS)


def test_a_record_of_other_ids_is_refused() -> None:
    _, own, evidence = pair(TREE, WITHOUT)
    own.law = replace(own.law, ids=IDS[:-1])
    with pytest.raises(ValueError, match=r"q record: .* got 6"):
        Traversal().weigh(Evidence(evidence.scores), own)

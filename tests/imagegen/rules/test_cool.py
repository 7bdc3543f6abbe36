"""Factors that cool down along a block."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.certify.enumeration import inexactness, random_tables
from mmspec.core.round.rules import RecursiveRejection, TokenWise
from mmspec.core.round.tree import chain, static_tree
from mmspec.imagegen.rules.cool import CoolSD
from tests.imagegen.rules.cases import CHAIN, TREE, WITHOUT, case


@pytest.mark.parametrize("floor", (0.0, 0.5, 1.0))
@pytest.mark.parametrize("delta", (1.0, 1.1, 1.4, 2.0, 10.0))
def test_factors_average_delta_over_the_block_whatever_the_floor(delta: float, floor: float) -> None:
    for block in (1, 2, 5, 32):
        for decay in (0.0, 0.01, 0.7, 3.0, 2000.0):
            factor = CoolSD(delta, decay, block=block, floor=floor).factor(torch.arange(1, block + 1), torch.float64)
            assert float(factor.mean()) == pytest.approx(delta, rel=1e-12)
            assert (factor >= floor).all() and (factor.diff() <= 0).all()


def test_the_default_relaxes_the_first_value_alone() -> None:
    assert CoolSD().factor(torch.arange(1, 6), torch.float64).tolist() == pytest.approx([1.5, 1, 1, 1, 1])


def test_an_explicit_mu_is_used_unchanged() -> None:
    assert CoolSD(1.4, 0.7, mu=-0.5, floor=0).factor(torch.arange(1, 4), torch.float64).tolist() == pytest.approx(
        [1.4 * math.exp(0.5 - 0.7 * i) for i in range(3)]
    )


def test_a_draft_longer_than_another_row_needs_changes_no_factor() -> None:
    draft, evidence = case(CHAIN, WITHOUT)
    short, seen = case(chain(3), WITHOUT)
    seen.scores, short.law.scores, short.value = evidence.scores[:, :4], draft.law.scores[:, :4], draft.value[:, :4]
    found = [CoolSD().weigh(*pair).threshold[:, :4] for pair in ((evidence, draft), (seen, short))]
    assert torch.equal(*found)


@pytest.mark.parametrize("how, children", ((WITHOUT, 1), (WITHOUT, 3), ("deterministic", 1), ("deterministic", 2)))
def test_factors_below_1_keep_the_targets_distribution(how: str, children: int) -> None:
    p, q = random_tables(3, 3, 0), random_tables(3, 2, 1)
    tree = static_tree([0] * (children + 1) + [1])
    for delta in (0.6, 1.0):
        assert inexactness(CoolSD(delta, 0.0, mu=0, floor=0), tree, p, q, drawn=how) < 1e-12
    assert inexactness(CoolSD(1.6, 0.0, mu=0, floor=0), tree, p, q, drawn=how) > 1e-3


def test_the_formula_as_printed() -> None:
    draft, evidence = case(CHAIN, WITHOUT)
    p, q = evidence.scores.softmax(-1), draft.law.scores.softmax(-1)
    token = draft.value[:, 1:, None]
    w = torch.tensor([1.3 * math.exp(-0.7 * i) for i in range(6)])
    expected = (p[:, :6].gather(2, token)[..., 0] / q[:, :6].gather(2, token)[..., 0] * w).clamp_max(1)
    found = CoolSD(1.3, mu=0, floor=0).weigh(evidence, draft).threshold[:, 1:]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("tree, exact", ((CHAIN, TokenWise()), (TREE, RecursiveRejection())), ids=("chain", "tree"))
@pytest.mark.parametrize("mu", (None, -0.5))
def test_early_values_are_accepted_more(tree: object, exact: object, mu: float | None) -> None:
    draft, evidence = case(tree, WITHOUT)
    plain, rule = exact.weigh(evidence, draft).threshold, CoolSD(1.5, 0.7, mu)
    found = rule.weigh(evidence, draft).threshold
    # three of five stay above 1 and share what the mean of 1.5 leaves for them
    first = (5 * 1.5 - 3) / (1 + math.exp(-0.7)) if mu is None else 1.5 * math.exp(-mu)
    factor = torch.tensor([first * math.exp(-0.7 * (d - 1)) for d in tree.depth[0].tolist()])
    expected = (plain * factor.clamp_min(1)).clamp_max(1)
    torch.testing.assert_close(found[:, 1:], expected[:, 1:])
    assert (found >= plain)[:, 1:].all() and factor[1] > 1 > factor[-1]


@pytest.mark.parametrize(
    "wrong",
    (
        dict(delta=0.0),
        dict(decay=-1.0),
        dict(decay=math.inf),
        dict(mu=math.nan),
        dict(block=0),
        dict(floor=1.5),
        dict(delta=0.9),
        dict(delta=0.4, floor=0.5),
    ),
)
def test_wrong_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected"):
        CoolSD(**wrong)

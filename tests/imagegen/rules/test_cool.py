"""Factors that cool down along a block."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.core.rules import RecursiveRejection, TokenWise
from mmspec.imagegen.rules.cool import CoolSD
from tests.imagegen.rules.cases import CHAIN, TREE, WITHOUT, case


def test_factors_average_delta_unless_mu_is_given() -> None:
    for depth in (1, 5, 32):
        rule = CoolSD(1.4, 0.7)
        factors = [rule.scale(depth) * math.exp(-0.7 * i) for i in range(depth)]
        assert sum(factors) / depth == pytest.approx(1.4)
    assert CoolSD(1.4, 0.7, mu=-0.5).scale(9) == pytest.approx(1.4 * math.exp(0.5))


@pytest.mark.parametrize("tree, exact", ((CHAIN, TokenWise()), (TREE, RecursiveRejection())), ids=("chain", "tree"))
@pytest.mark.parametrize("mu", (None, -0.5))
def test_early_values_are_accepted_more(tree: object, exact: object, mu: float | None) -> None:
    draft, evidence = case(tree, WITHOUT)
    plain, rule = exact.weigh(evidence, draft).threshold, CoolSD(1.5, 0.7, mu)
    found = rule.weigh(evidence, draft).threshold
    factor = torch.tensor([rule.scale(tree.max_depth) * math.exp(-0.7 * (d - 1)) for d in tree.depth[0].tolist()])
    expected = (plain * factor.clamp_min(1)).clamp_max(1)
    torch.testing.assert_close(found[:, 1:], expected[:, 1:])
    assert (found >= plain)[:, 1:].all() and factor[1] > 1 > factor[-1]


@pytest.mark.parametrize("wrong", (dict(delta=0.0), dict(decay=-1.0)))
def test_wrong_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match="expected delta above 0"):
        CoolSD(**wrong)

"""What causal models of continuous tokens are trained on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.imagegen.continuous.causal.transformer import CausalConfig, CausalTransformer, causal_loss, flow_loss

POINTS, SHARES = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
SIZES = CausalConfig(grid=3, token_dim=2, width=16, depth=2, heads=2, class_num=4, head_depth=1, head_width=16)


def true_velocity(x: Tensor, t: Tensor, z: Tensor) -> Tensor:
    """Mean of token - noise given x_t, of tokens that are one of three points."""
    t = t[:, None] / 1000
    noise = (x - t * POINTS) / (1 - t)  # [R, 3], what it was for each point
    weight = (SHARES.log() - noise**2 / 2).softmax(-1)
    return (weight * (POINTS - noise)).sum(-1, keepdim=True)


def expected_loss(velocity, t: float) -> float:
    """The loss over all points and, by quadrature, all noise."""
    nodes, weights = (torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(80))
    tokens, noise = (one.reshape(-1, 1) for one in torch.meshgrid(POINTS, nodes, indexing="ij"))
    each = flow_loss(velocity, tokens, torch.full((len(tokens),), t, dtype=torch.float64), noise, tokens)
    share = SHARES[:, None] * weights / math.sqrt(2 * math.pi)
    return float((each.double() * share.flatten()).sum())


@pytest.mark.parametrize("t", (0.0, 0.3, 0.7))
def test_the_flow_loss_is_least_for_the_true_velocity(t: float) -> None:
    def bent(amount: float, how):
        return expected_loss(lambda x, at, z: true_velocity(x, at, z) + amount * how(x), t)

    for how in (torch.ones_like, lambda x: x, torch.sin, lambda x: x**2):
        up, best, down = (bent(amount, how) for amount in (0.1, 0.0, -0.1))
        # a parabola in the amount whose lowest point is at 0
        assert up == pytest.approx(down, abs=1e-5) and up > best + 1e-4
    # tokens that are not what is asked for would have another least loss
    assert expected_loss(lambda x, at, z: -true_velocity(x, at, z), t) > expected_loss(true_velocity, t) + 0.1


@torch.no_grad()
@pytest.mark.parametrize("head", ("sde", "diffusion"))
def test_a_token_teaches_only_behind_those_before_it(head: str) -> None:
    torch.manual_seed(0)
    model = CausalTransformer(CausalConfig(**{**SIZES.to_dict(), "head": head})).eval()
    for value in model.net.parameters():  # the output begins as 0
        value.normal_(std=0.3)
    tokens, labels = torch.randn(2, 9, 2), torch.tensor([1, -1])

    def losses(tokens: Tensor) -> Tensor:
        return causal_loss(model, tokens, labels, torch.Generator().manual_seed(0), copies=2).view(2, 2, 9)

    other = tokens.clone()
    other[0, 4] += 1
    changed = losses(other) != losses(tokens)
    assert changed[:, 0, 4:].all() and not changed[:, 0, :4].any() and not changed[:, 1].any()
    assert losses(tokens).isfinite().all() and losses(tokens)[0, 0, 0] != losses(tokens)[1, 0, 0]

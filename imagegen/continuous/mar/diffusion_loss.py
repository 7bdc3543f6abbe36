"""What MAR's diffusion head is trained on."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head import Gaussian
from mmspec.imagegen.continuous.mar.diffusion import diffusion
from mmspec.imagegen.continuous.mar.diffusion_head import DenoisingMLP, ReverseSteps

_BIN = 1 / 255  # half the width of the bins that the last step's likelihood is taken over


class HeadLoss(NamedTuple):
    """Per row, float [R]. noise: mean squared error of the predicted noise.   variance: the variational bound in bits, which
    teaches the variance alone. They are added without weights."""

    noise: Tensor
    variance: Tensor


def noised(tokens: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """x_t of tokens float [R, d] at timesteps int64 [R] of the training's schedule."""
    level = diffusion().alphas_cumprod.to(tokens.device)[t][:, None]
    return level.sqrt().float() * tokens + (1 - level).sqrt().float() * noise


def head_loss(net: DenoisingMLP, tokens: Tensor, t: Tensor, noise: Tensor, z: Tensor) -> HeadLoss:
    """The losses of one step a row.

    tokens: clean, float [R, d].   t: int64 [R], 0..999.   noise: float [R, d], standard normal.   z: [R, condition].
    """
    x = noised(tokens, t, noise)
    predicted, variance = net(x, t, z).float().chunk(2, -1)
    tables = diffusion()
    law = ReverseSteps(tables, x.device).law(x, t, predicted.detach(), variance)
    mean = _row(tables.posterior_mean_coef1, t) * tokens + _row(tables.posterior_mean_coef2, t) * x
    divergence = _divergence(mean, _row(tables.posterior_log_variance_clipped, t), law)
    bits = torch.where((t == 0)[:, None], _surprise(tokens, law), divergence).mean(-1) / math.log(2)
    return HeadLoss((predicted - noise).square().mean(-1), bits)


def _row(table: Tensor, t: Tensor) -> Tensor:
    return table.to(t.device)[t].float()[:, None]


def _divergence(mean: Tensor, log_variance: Tensor, law: Gaussian) -> Tensor:
    """KL of N(mean, exp(log_variance)) from the law, [R, d]."""
    other = 2 * law.log_scale
    gap = (mean - law.mean).square() * (-other).exp()
    return 0.5 * (other - log_variance - 1 + (log_variance - other).exp() + gap)


def _surprise(tokens: Tensor, law: Gaussian) -> Tensor:
    """Negative log probability of the bin a token lies in, bins at the ends of -1..1 being open, [R, d]."""
    centred, scale = tokens - law.mean, (-law.log_scale).exp()
    above, below = _normal_cdf(scale * (centred + _BIN)), _normal_cdf(scale * (centred - _BIN))
    mass = torch.where(tokens < -0.999, above, torch.where(tokens > 0.999, 1 - below, above - below))
    return -mass.clamp_min(1e-12).log()


def _normal_cdf(x: Tensor) -> Tensor:
    """The approximation the published models are trained with."""
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

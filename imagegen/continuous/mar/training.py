"""MAR's training loss: the diffusion loss of the head at masked positions, with a mask ratio drawn for every batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head_sampling.head import Gaussian
from mmspec.imagegen.continuous.mar.diffusion import TRAINING_STEPS, diffusion
from mmspec.imagegen.continuous.mar.diffusion_head import DenoisingMLP, ReverseSteps
from mmspec.imagegen.continuous.mar.transformer import MAR

_BIN = 1 / 255  # half the width of a bin of the last step's likelihood


class HeadLoss(NamedTuple):
    """The head's losses per row, float [R]; their sum has no weights."""

    noise: Tensor  # the mean squared error of the predicted noise
    variance: Tensor  # the variational bound in bits, which trains the variance alone


def noised(tokens: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """Return x_t of tokens float [R, d] at timesteps int64 [R] of the training schedule."""
    level = diffusion().alphas_cumprod.to(tokens.device)[t][:, None]
    return level.sqrt().float() * tokens + (1 - level).sqrt().float() * noise


def head_loss(net: DenoisingMLP, tokens: Tensor, t: Tensor, noise: Tensor, z: Tensor) -> HeadLoss:
    """Return a step's losses: tokens and normal noise float [R, d], t int64 [R] in 0..999, z [R, condition]."""
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
    """Return the KL divergence of N(mean, exp(log_variance)) from the Gaussian, [R, d]."""
    other = 2 * law.log_scale
    gap = (mean - law.mean).square() * (-other).exp()
    return 0.5 * (other - log_variance - 1 + (log_variance - other).exp() + gap)


def _surprise(tokens: Tensor, law: Gaussian) -> Tensor:
    """Return the negative log probability of a token's bin, [R, d]; the bins at the ends of -1..1 are open."""
    centred, scale = tokens - law.mean, (-law.log_scale).exp()
    above, below = _normal_cdf(scale * (centred + _BIN)), _normal_cdf(scale * (centred - _BIN))
    mass = torch.where(tokens < -0.999, above, torch.where(tokens > 0.999, 1 - below, above - below))
    return -mass.clamp_min(1e-12).log()


def _normal_cdf(x: Tensor) -> Tensor:
    """Return the approximation that the published models are trained with."""
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


LEAST, SPREAD, COPIES = 0.7, 0.25, 4  # the published least mask ratio, its spread, and the head's draws per token


def mask_ratio(u: float) -> float:
    """Return the quantile at u in 0..1 of the normal with mean 1 and spread 0.25 that is truncated to LEAST..1."""
    low = NormalDist().cdf((LEAST - 1) / SPREAD)
    return 1 + SPREAD * NormalDist().inv_cdf(low + u * (0.5 - low))


def sampled_ratio(u: float) -> float:
    """Return cos(pi u / 2), the masked share at a uniformly random step of sampling. A small model that only saw the
    published 0.7 and more does not use further tokens once they are known."""
    return math.cos(math.pi / 2 * u)


def training_mask(
    rows: int, total: int, drawn: torch.Generator, ratio: Callable[[float], float] = mask_ratio
) -> Tensor:
    """Return bool [rows, total], True where masked: the same number in each row, at least 1, at random places."""
    share = ratio(float(torch.rand((), generator=drawn, dtype=torch.float64)))
    masked = max(math.ceil(total * share), 1)
    return torch.rand(rows, total, generator=drawn).argsort(-1) < masked


def masked_loss(
    model: MAR,
    tokens: Tensor,
    labels: Tensor,
    drawn: torch.Generator,
    copies: int = COPIES,
    ratio: Callable[[float], float] = mask_ratio,
    most_weight: float = 1.0,
) -> HeadLoss:
    """Return the head's losses at the masked positions of tokens float [B, L, d], rows [copies * masked].
    "Autoregressive Image Generation without Vector Quantization" with the defaults. `most_weight` limits the weights 1
    / alpha-bar on errors of the noise; 1 gives all the same weight, as published. Where there is most noise, the
    condition hardly affects its prediction. Errors of the velocity show it, 1 / alpha-bar times those of the noise
    ("Progressive Distillation for Fast Sampling of Diffusion Models")."""
    mask = training_mask(*tokens.shape[:2], drawn, ratio).to(tokens.device)
    z, clean = (x[mask].repeat(copies, 1) for x in (model(tokens, mask, labels), tokens))
    t = torch.randint(TRAINING_STEPS, (len(clean),), generator=drawn).to(tokens.device)
    noise = torch.randn(clean.shape, generator=drawn).to(tokens.device)
    loss = head_loss(model.diffloss["net"], clean, t, noise, z)
    weight = (1 / diffusion().alphas_cumprod).clamp(max=most_weight).float().to(t.device)[t]
    return HeadLoss(loss.noise * weight, loss.variance)

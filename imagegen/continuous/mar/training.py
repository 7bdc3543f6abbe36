"""What MAR is trained on: the head's loss at masked positions, with the share of them drawn anew for every batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import torch
from torch import Tensor

from mmspec.imagegen.continuous.mar.diffusion import TRAINING_STEPS, diffusion
from mmspec.imagegen.continuous.mar.diffusion_loss import HeadLoss, head_loss
from mmspec.imagegen.continuous.mar.transformer import MAR

LEAST, SPREAD, COPIES = 0.7, 0.25, 4  # of the published training: its least mask ratio, and draws of the head a token


def mask_ratio(u: float) -> float:
    """Quantile at u in 0..1 of the normal of mean 1 and spread 0.25 that is cut to LEAST..1."""
    low = NormalDist().cdf((LEAST - 1) / SPREAD)
    return 1 + SPREAD * NormalDist().inv_cdf(low + u * (0.5 - low))


def sampled_ratio(u: float) -> float:
    """cos(pi u / 2): the shares that are masked while an image is sampled, each as often as its steps are.

    A small model that only saw the published 0.7 and more takes nothing from further tokens once they are known.
    """
    return math.cos(math.pi / 2 * u)


def training_mask(
    rows: int, total: int, drawn: torch.Generator, ratio: Callable[[float], float] = mask_ratio
) -> Tensor:
    """bool [rows, total], True where masked: equally many in each row, at least one, at random places."""
    share = ratio(float(torch.rand((), generator=drawn, dtype=torch.float64)))
    masked = max(math.ceil(total * share), 1)
    return torch.rand(rows, total, generator=drawn).argsort(-1) < masked


def masked_loss(
    model: MAR, tokens: Tensor, labels: Tensor, drawn: torch.Generator, copies: int = COPIES,
    ratio: Callable[[float], float] = mask_ratio, most_weight: float = 1.0,
) -> HeadLoss:  # fmt: skip
    """The head's losses at the masked positions of a batch, rows [copies * masked].

    "Autoregressive Image Generation without Vector Quantization" with the defaults.
    tokens: clean, float [B, L, d].   labels: as the model takes them, rows without a condition among them.
    drawn: on the CPU; of mask, timesteps and noise.   copies: draws of timestep and noise for one condition.
    ratio: quantiles of the share that is masked.
    most_weight: errors of the noise weigh 1 / alpha-bar, at most this much; 1 weighs all alike, as published. What the
    condition tells of a token hardly shows in its noise where there is most of it: errors of the velocity would, and they
    are 1 / alpha-bar times those of the noise ("Progressive Distillation for Fast Sampling of Diffusion Models").
    """
    mask = training_mask(*tokens.shape[:2], drawn, ratio).to(tokens.device)
    z, clean = (x[mask].repeat(copies, 1) for x in (model(tokens, mask, labels), tokens))
    t = torch.randint(TRAINING_STEPS, (len(clean),), generator=drawn).to(tokens.device)
    noise = torch.randn(clean.shape, generator=drawn).to(tokens.device)
    loss = head_loss(model.diffloss["net"], clean, t, noise, z)
    weight = (1 / diffusion().alphas_cumprod).clamp(max=most_weight).float().to(t.device)[t]
    return HeadLoss(loss.noise * weight, loss.variance)

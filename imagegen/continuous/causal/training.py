"""What a causal model of continuous tokens is trained on: the loss of its head behind every token before."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.imagegen.continuous.causal.transformer import CausalTransformer
from mmspec.imagegen.continuous.mar.diffusion import TRAINING_STEPS
from mmspec.imagegen.continuous.mar.diffusion_loss import head_loss
from mmspec.imagegen.continuous.sde_head import Velocity


def flow_loss(velocity: Velocity, tokens: Tensor, t: Tensor, noise: Tensor, z: Tensor) -> Tensor:
    """Per row, float [R]: squared error of the velocity of x_t = (1 - t) noise + t token, which is token - noise.

    "Flow Matching for Generative Modeling". It is least for the mean of token - noise given x_t, the field that `SDEHead`
    walks along.   tokens, noise: float [R, d].   t: float [R], 0 (noise) to 1 (token).   z: [R, width].
    """
    x = noise + t[:, None] * (tokens - noise)
    return (velocity(x, 1000 * t, z).float() - (tokens - noise)).square().mean(-1)


def causal_loss(
    model: CausalTransformer, tokens: Tensor, labels: Tensor, drawn: torch.Generator, copies: int = 4
) -> Tensor:
    """The loss of the model's head at every token, float [copies * B * L].

    tokens: clean, float [B, L, d].   labels: int64 [B], -1 for no class.   drawn: on the CPU; of times and noise.
    copies: draws of time and noise for one condition.
    """
    z, clean = (x.flatten(0, 1).repeat(copies, 1) for x in (model.training_z(labels, tokens), tokens))
    noise = torch.randn(clean.shape, generator=drawn).to(tokens.device)
    if model.config.head == "sde":
        t = torch.rand(len(clean), generator=drawn).to(tokens.device)
        return flow_loss(model.net, clean, t, noise, z)
    t = torch.randint(TRAINING_STEPS, (len(clean),), generator=drawn).to(tokens.device)
    return sum(head_loss(model.net, clean, t, noise, z))

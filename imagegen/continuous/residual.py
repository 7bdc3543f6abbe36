"""What follows a rejected token under CSpD: the first accepted of a few proposals from the target's last step."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.imagegen.continuous.acceptance import Relaxation, log_residual, log_scale
from mmspec.imagegen.continuous.head import Trajectory

TRIES = 100  # as many as the public code makes


def residual_sample(
    draft: Trajectory,
    target: Trajectory,
    noise: Tensor,
    uniform: Tensor,
    relaxation: Relaxation,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A token with the law [S p - q]+ normalised, by rejection. Returns (float [..., d], int64 [...] tries it took).

    noise: float [tries, ..., d], standard normal; uniform: float [tries, ...]. Proposals are x = mu_p + sigma_p noise, the
    law of the target's last step, and the first that passes is kept. A row in which none passes takes the target's own
    aligned sample, its number of tries is 0: that is a draw from the target, and not from the residual. No state is
    computed again, and no row depends on another.
    """
    last = target.last
    proposal = last.mean.double() + log_scale(last, temperature).exp() * noise
    passed = uniform.double().log() < log_residual(proposal, draft, target, relaxation, temperature)
    first = passed.int().argmax(0)
    found = passed.any(0)
    index = first[None, ..., None].expand(1, *proposal.shape[1:])
    value = proposal.gather(0, index)[0].to(target.value.dtype)
    return torch.where(found[..., None], value, target.value), torch.where(found, first + 1, 0)

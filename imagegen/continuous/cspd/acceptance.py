"""CSpD's acceptance ratio of two aligned denoising trajectories, and the residual draw after a rejection, in log space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Trajectory
from mmspec.io.validation import Range, check_fields

Determinants = Literal["derived", "published", "none"]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """How CSpD's test departs from a ratio of densities.

    Args:
        temperature: The divisor of a token's distance from both means in the acceptance test; 1 leaves the ratio
            unchanged. At the scales of MAR's last step that ratio accepts nothing, so the public code's 42 is part of
            the method.
        determinants: The product S of the earlier steps' scales.
            "derived": draft over target, which follows from the ratio of the trajectories' densities.
            "published": target over draft, the inverse, which the public code computes.
            "none": 1. Given the shared noise both last states are fixed. So only this is exact, with temperature 1 and
            a last step that is really drawn.

    Raises:
        ValueError: A setting is out of range.
    """

    temperature: Annotated[float, Range(above=0, hint="1 for none, 42 as published")] = 42.0
    determinants: Determinants = "derived"

    __post_init__ = check_fields


def log_scale(law: Gaussian, temperature: float) -> Tensor:
    """Return float64 [..., d], the log of the standard deviation, temperature included."""
    if not temperature > 0:
        raise ValueError(
            f"temperature: expected a number above 0, got {temperature}; without noise there are no densities"
        )
    return law.log_scale.double() + math.log(temperature)


def log_density(value: Tensor, law: Gaussian, temperature: float, relaxation: float = 1.0) -> Tensor:
    """Return float64 [...] at values [..., d], without the constant; `relaxation` divides distances only."""
    scale = log_scale(law, temperature)
    distance = (value.double() - law.mean.double()) / scale.exp() / relaxation
    return -(distance.square() / 2 + scale).sum(-1)


def log_determinants(draft: Trajectory, target: Trajectory, kind: Determinants) -> Tensor:
    """Return log S, float64 [...]."""
    derived = draft.log_det.double() - target.log_det.double()
    return {"derived": derived, "published": -derived, "none": torch.zeros_like(derived)}[kind]


def log_ratio(
    value: Tensor, draft: Trajectory, target: Trajectory, relaxation: Relaxation, temperature: float = 1.0
) -> Tensor:
    """Return log(ratio), float64 [...], of tokens x_0 float [..., d]; a draft passes with min(1, ratio). Relaxed.
    "Continuous Speculative Decoding for Autoregressive Image Generation": ratio = S p(x_0 | x_1^p) / q(x_0 | x_1^q),
    each on its own trajectory under the same noise. S = prod sigma_q / prod sigma_p over all steps but the last."""
    p = log_density(value, target.last, temperature, relaxation.temperature)
    q = log_density(value, draft.last, temperature, relaxation.temperature)
    return log_determinants(draft, target, relaxation.determinants) + p - q


def log_residual(
    proposal: Tensor, draft: Trajectory, target: Trajectory, relaxation: Relaxation, temperature: float = 1.0
) -> Tensor:
    """Return log([S p - q]+ / (S p)), float64 [...], with which a proposal from the target's last step replaces a
    rejected token; -inf at 0. The relaxation temperature is not used, as in the public code."""
    p, q = (log_density(proposal, trajectory.last, temperature) for trajectory in (target, draft))
    return log1mexp(q - p - log_determinants(draft, target, relaxation.determinants))


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) without cancellation; -inf for x >= 0."""
    below = x.clamp_max(0)
    return torch.where(below > -math.log(2), (-torch.expm1(below)).log(), torch.log1p(-below.exp()))


RESIDUAL_TRIES = 100  # as in the public code


def residual_sample(
    draft: Trajectory,
    target: Trajectory,
    noise: Tensor,
    uniform: Tensor,
    relaxation: Relaxation,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Draw tokens float [..., d] from [S p - q]+ normalised, with the tries int64 [...], 0 where none passed. Proposals
    are x = mu_p + sigma_p noise of the target's last step (noise [tries, ..., d], uniform [tries, ...]). Where none
    passes, the row gets the target's own aligned sample, which is no draw from the residual."""
    last = target.last
    proposal = last.mean.double() + log_scale(last, temperature).exp() * noise
    passed = uniform.double().log() < log_residual(proposal, draft, target, relaxation, temperature)
    first = passed.int().argmax(0)
    any_passed = passed.any(0)
    index = first[None, ..., None].expand(1, *proposal.shape[1:])
    value = proposal.gather(0, index)[0].to(target.value.dtype)
    return torch.where(any_passed[..., None], value, target.value), torch.where(any_passed, first + 1, 0)

"""MAR's diffusion: the cosine schedule, and shorter schedules of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

TRAINING_STEPS = 1000
_OFFSET, _MOST_NOISE = 0.008, 0.999


@dataclass(frozen=True, slots=True, eq=False)
class Diffusion:
    """Tables of T steps, float64 [T] on the CPU, index 0 the cleanest."""

    timestep_map: Tensor  # int64 [T], the index in the training schedule, which is the network's input
    betas: Tensor  # beta
    alphas_cumprod: Tensor  # alpha-bar
    alphas_cumprod_prev: Tensor  # the alpha-bar of the index below
    posterior_variance: Tensor  # of q(x_{t-1} | x_t, x_0), 0 at index 0
    posterior_log_variance_clipped: Tensor  # index 0 has the value of index 1
    posterior_mean_coef1: Tensor  # the weight of x_0 in its mean
    posterior_mean_coef2: Tensor  # the weight of x_t in its mean
    sqrt_recip_alphas_cumprod: Tensor  # a in x_0 = a x_t - b noise
    sqrt_recipm1_alphas_cumprod: Tensor  # b in x_0 = a x_t - b noise

    @property
    def steps(self) -> int:
        return len(self.betas)


@lru_cache(maxsize=64, typed=True)  # 50.0 is not 50
def diffusion(respacing: str | int = TRAINING_STEPS) -> Diffusion:
    """Return the schedule of "Autoregressive Image Generation without Vector Quantization", respaced as in "Improved
    Denoising Diffusion Probabilistic Models": betas are recomputed from the remaining alpha-bars."""
    return _of(tuple(kept_timesteps(respacing).tolist()))


def thinned(schedule: Diffusion, count: int) -> Diffusion:
    """Return `count` evenly spaced steps of a schedule, its first and last included, so it starts no noisier than the
    whole. A model that is not exact near pure noise may be sampled from less noise, as by "ddim50"."""
    if not 2 <= count <= schedule.steps:
        raise ValueError(f"steps: expected 2 to {schedule.steps} of the head's, got {count}; use as many or fewer")
    place = torch.linspace(0, schedule.steps - 1, count, dtype=torch.float64).round().long()
    return _of(tuple(schedule.timestep_map[place].tolist()))


@lru_cache(maxsize=256)
def _of(timesteps: tuple[int, ...]) -> Diffusion:
    with torch.device("cpu"), torch.inference_mode(False):
        timesteps = torch.tensor(timesteps)
        alphas_cumprod = (1 - _cosine_betas(TRAINING_STEPS)).cumprod(0)[timesteps]
        betas = 1 - alphas_cumprod / _before(alphas_cumprod)
        return _tables(timesteps, betas)


def kept_timesteps(respacing: str | int) -> Tensor:
    """Return int64 [T], ascending: the training steps of a respaced schedule. "100" uses evenly spaced steps, the first
    and the last included. "10,20" divides the steps into sections of equal length and uses that number of each.
    "ddim10" uses every k-th step from 0 on, for the first k that gives 10."""
    text = str(respacing)
    if text.startswith("ddim") and text[4:].isdigit():
        timesteps = _strided(int(text[4:]))
    else:
        parts = text.split(",")
        counts = [int(part) for part in parts] if all(part.strip().isdigit() for part in parts) else []
        timesteps = _sections(counts)
    if len(timesteps) < 2:
        raise ValueError(
            f"num_sampling_steps: expected 2 to {TRAINING_STEPS} steps such as '100', '10,20' or 'ddim50', got "
            f"{respacing!r}; use one of these forms"
        )
    return torch.tensor(timesteps)


def _strided(count: int) -> list[int]:
    for stride in range(1, TRAINING_STEPS):
        timesteps = range(0, TRAINING_STEPS, stride)
        if len(timesteps) == count:
            return list(timesteps)
    return []


def _sections(counts: list[int]) -> list[int]:
    timesteps, start = set(), 0
    for number, count in enumerate(counts):
        size = TRAINING_STEPS // len(counts) + (number < TRAINING_STEPS % len(counts))
        if not 0 < count <= size:
            return []
        stride, place = (size - 1) / (count - 1) if count > 1 else 1, 0.0
        for _ in range(count):
            timesteps.add(start + round(place))
            place += stride  # summed, not multiplied, to round as in the public code
        start += size
    return sorted(timesteps)


def _cosine_betas(steps: int) -> Tensor:
    def level(share: float) -> float:
        return math.cos((share + _OFFSET) / (1 + _OFFSET) * math.pi / 2) ** 2

    betas = [min(1 - level((t + 1) / steps) / level(t / steps), _MOST_NOISE) for t in range(steps)]
    return torch.tensor(betas, dtype=torch.float64)


def _before(alphas_cumprod: Tensor) -> Tensor:
    return torch.cat((alphas_cumprod.new_ones(1), alphas_cumprod[:-1]))


def _tables(timesteps: Tensor, betas: Tensor) -> Diffusion:
    alphas = 1 - betas
    total = alphas.cumprod(0)
    before = _before(total)
    variance = betas * (1 - before) / (1 - total)
    return Diffusion(
        timesteps,
        betas,
        total,
        before,
        variance,
        torch.cat((variance[1:2], variance[1:])).log(),
        betas * before.sqrt() / (1 - total),
        (1 - before) * alphas.sqrt() / (1 - total),
        (1 / total).sqrt(),
        (1 / total - 1).sqrt(),
    )

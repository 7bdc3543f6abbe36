"""Sampling with schedulers of diffusers: a single walk, or a pyramid of stages of growing size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from mmspec.io.validation import Size, check_fields
from mmspec.video.generation import Velocity


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Sampling with any scheduler that draws no noise: Euler over flows, and multi-step schedulers such as UniPC.

    Args:
        scheduler: The scheduler, copied for every block so that blocks share no state.
        passes: Steps per block.
        how: Further arguments of its `set_timesteps`.

    Raises:
        ValueError: There are no steps.
    """

    scheduler: Any
    passes: Size = 50
    how: Mapping[str, Any] = field(default_factory=dict)
    until = False

    __post_init__ = check_fields

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        x, scheduler = noise(0), deepcopy(self.scheduler)
        scheduler.set_timesteps(self.passes, device=x.device, **self.how)
        for timestep in scheduler.timesteps:
            flow = velocity(x, float(timestep), float(timestep))
            x = scheduler.step(flow, timestep, x, return_dict=False)[0]
        return x


def dynamic_shift(tokens: int, config: Mapping[str, Any]) -> float:
    """Return the shift for `tokens` tokens, on the line through the two points in the scheduler's config."""
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    return low + (tokens - few) * (high - low) / (many - few)


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Sampling in stages: a small block is enlarged twofold from stage to stage, with noise that hides the enlarging
    ("Pyramidal Flow Matching for Efficient Video Generative Modeling"). The steps are those of HeliosPyramidPipeline.
    """

    scheduler: Any  # a HeliosScheduler or HeliosDMDScheduler, copied for every block
    steps: tuple[int, ...] = (10, 10, 10)  # per stage, the smallest first
    patch: tuple[int, int, int] = (1, 2, 2)  # frames, rows and columns of a token
    doubled: bool = False  # twice the steps, which only distilled models support
    until = False

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "steps", tuple(self.steps))
        stages = self.scheduler.config.stages
        if not self.steps or min(self.steps) < 1 or len(self.steps) != stages:
            raise ValueError(
                f"steps: expected at least 1 for each of the scheduler's {stages} stages, got "
                f"{list(self.steps)}; give a number per stage"
            )
        if self.doubled and not self.distilled:
            raise ValueError(
                f"doubled: expected a HeliosDMDScheduler to double the steps of, got "
                f"{type(self.scheduler).__name__}; leave it out"
            )

    @property
    def distilled(self) -> bool:
        """Whether each step predicts the clean block and returns to the noise at the start of the stage."""
        from diffusers import HeliosDMDScheduler

        return isinstance(self.scheduler, HeliosDMDScheduler)

    @property
    def passes(self) -> int:
        return sum(self.steps) * (2 if self.doubled else 1)

    def draw(self, velocity: Velocity, noise: Callable[[int], Tensor]) -> Tensor:
        x, scheduler = noise(0), deepcopy(self.scheduler)
        for _ in self.steps[1:]:
            x = 2 * _resized(x, 0.5, "bilinear")  # the mean of four normals has half their spread
        for stage, steps in enumerate(self.steps):
            # counted before the enlarging, as published
            tokens = x.shape[2] * x.shape[3] * x.shape[4] // math.prod(self.patch)
            how = {"mu": dynamic_shift(tokens, scheduler.config), "is_amplify_first_chunk": self.doubled}
            scheduler.set_timesteps(steps, stage, device=x.device, **how)
            if stage:
                x = self._enlarged(x, scheduler.ori_start_sigmas[stage], noise(stage))
            x = self._walk(velocity, x, scheduler)
        return x

    def _walk(self, velocity: Velocity, x: Tensor, scheduler: Any) -> Tensor:
        start, times = x, scheduler.timesteps
        for number, timestep in enumerate(times):
            flow = velocity(x, float(int(timestep)), float(int(timestep)))  # the models read whole timesteps
            back = (
                {
                    "cur_sampling_step": number,
                    "dmd_noisy_tensor": start,
                    "dmd_sigmas": scheduler.sigmas,
                    "dmd_timesteps": times,
                    "all_timesteps": times,
                }
                if self.distilled
                else {}
            )
            x = scheduler.step(flow, timestep, x, return_dict=False, **back)[0]
        return x

    def _enlarged(self, x: Tensor, sigma: float, fresh: Tensor) -> Tensor:
        """Return a block with twice the rows and columns, at the level `sigma`, from standard normals `fresh`, at least
        as large. The cells of a patch are equal after the enlarging. Their noise is negatively correlated, by the
        scheduler's gamma, so that the sum has the covariance of independent noise."""
        x, gamma = _resized(x, 2.0, "nearest"), self.scheduler.config.gamma
        signal = 1 - sigma
        alpha = 1 / (math.sqrt(1 + 1 / gamma) * (1 - signal) + signal)
        beta = alpha * (1 - signal) / math.sqrt(gamma)
        rows, columns = self.patch[1:]
        eye = torch.eye(rows * columns, device=x.device)
        spread = lower_factor(eye * (1 + gamma + 1e-8) - gamma * torch.ones_like(eye))
        axes, cells = "b c f (h rows) (w columns)", "b c f h w (rows columns)"
        patches = rearrange(fresh[..., : x.shape[3], : x.shape[4]], f"{axes} -> {cells}", rows=rows, columns=columns)
        patches = rearrange(patches.float() @ spread.T, f"{cells} -> {axes}", rows=rows, columns=columns)
        return alpha * x + beta * patches.to(fresh.dtype)


def lower_factor(covariance: Tensor) -> Tensor:
    """Return the Cholesky factor [n, n] of a covariance that may be singular. Cells with correlation -1 / (n - 1) have
    a last pivot of 0, which rounding may make negative."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    cells = len(covariance)
    if int(failed):
        factor[-1, -1] = 0
    if int(failed) not in (0, cells) or not torch.allclose(factor @ factor.T, covariance, atol=1e-5):
        raise ValueError(
            f"gamma: expected at most 1 / {cells - 1} between {cells} cells of a patch, got more; correct the "
            "scheduler's config"
        )
    return factor


def _resized(x: Tensor, scale: float, mode: str) -> Tensor:
    """Return [B, C, F, H, W] with scaled rows and columns, frame by frame."""
    size = (int(x.shape[3] * scale), int(x.shape[4] * scale))
    frames = F.interpolate(rearrange(x, "b c f h w -> (b f) c h w"), size=size, mode=mode)
    return rearrange(frames, "(b f) c h w -> b c f h w", b=x.shape[0])

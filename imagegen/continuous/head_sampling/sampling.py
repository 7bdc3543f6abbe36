"""Sampling of a pass's tokens from a head: the noise of a position, and plain, annealed or speculative sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from mmspec.core.round.draft import gather_nodes
from mmspec.core.round.keys import Keys, Purpose
from mmspec.imagegen.continuous.head_sampling.head import Gaussian, Head, Trajectory, sample
from mmspec.imagegen.continuous.head_sampling.speculation import speculate
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep
from mmspec.imagegen.continuous.schedules.step_annealing import Annealing
from mmspec.io.validation import Range, check_fields
from mmspec.methods import method


class Noise(Protocol):
    steps: int  # T of the head
    dim: int  # d of the head

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return initial states float32 [B, K, d] and noise float32 [B, K, T, d], by step, of positions int64 [B, K]."""


@dataclass(frozen=True, slots=True)
class KeyedNoise:
    """Noise regenerated from the rows' seeds at each use; heads of different lengths share their last steps."""

    keys: Keys
    steps: int
    dim: int

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        drawn = self.keys.normal_at(position, (self.steps + 1) * self.dim)
        drawn = drawn.unflatten(-1, (self.steps + 1, self.dim))
        return drawn[..., 0, :], drawn[..., 1:, :]


class GivenNoise:
    """Noise that was drawn elsewhere: initial float [B, L, d] and noise float [B, L, T, d]."""

    def __init__(self, initial: Tensor, noise: Tensor):
        if (
            initial.dim() != 3
            or noise.dim() != 4
            or noise.shape[:2] != initial.shape[:2]
            or (noise.shape[-1] != initial.shape[-1])
        ):
            raise ValueError(
                f"noise: expected [B, L, d] and [B, L, T, d], got {tuple(initial.shape)} and "
                f"{tuple(noise.shape)}; give an entry per position and step"
            )
        self.initial, self.noise = initial.float(), noise.float()
        self.steps, self.dim = noise.shape[2:]

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        if len(position) != len(self.initial):
            raise ValueError(
                f"noise: expected a row for each of {len(position)} images, got {len(self.initial)}; draw noise for each"
            )
        return tuple(gather_nodes(tensor.to(position.device), position) for tensor in (self.initial, self.noise))


@dataclass(slots=True)
class HeadRequest:
    """R tokens to draw."""

    z: Tensor  # float [C, R, width], the conditions
    initial: Tensor  # float [R, d]
    noise: Tensor  # float [R, T, d]
    guidance: Tensor | None  # float [R], the scales
    temperature: float
    keys: Keys | None = None  # a row for each of R
    calls: int = 0  # sequential calls of the head so far

    def rows(self, chosen: Tensor) -> HeadRequest:
        guidance = None if self.guidance is None else self.guidance[chosen]
        keys = None if self.keys is None else Keys(self.keys.seeds[chosen], self.keys.round)
        return HeadRequest(
            self.z[:, chosen], self.initial[chosen], self.noise[chosen], guidance, self.temperature, keys
        )


@dataclass(frozen=True, slots=True)
class HeadSampling:
    """The sampler of heads.

    Args:
        window: The number of states that a call of the head evaluates per token; 1 is plain sampling, more is
            speculation over head time (`speculate`), which is exact.
        annealing: None gives every token the same number of steps; else see `Annealing`, which is relaxed.

    Raises:
        ValueError: The window is below 1.
    """

    window: Annotated[int, Range(1, hint="1 is plain sampling")] = 1
    annealing: Annealing | None = None

    __post_init__ = check_fields

    @property
    def exact(self) -> bool:
        """Whether tokens have the distribution of plain sampling."""
        return self.annealing is None

    def check(self, temperature: float) -> None:
        """Refuse a window above 1 at temperature 0: without noise a step has no distribution to speculate on."""
        if self.window > 1 and not temperature > 0:
            raise ValueError(
                f"temperature: expected a number above 0 to speculate over head time, got {temperature}; use a "
                "window of 1"
            )

    def counts(
        self, steps: Sequence[GenerationStep], total: int, most: int, windows: Sequence[int] | None = None
    ) -> Tensor | None:
        """Return int64 [total], the denoising steps by rank in the order; None where every token has the same number.
        `most` counts the steps with noise; `windows` is as in `Annealing.by_rank`."""
        if self.annealing is None:
            return None
        if self.annealing.first > most:
            raise ValueError(
                f"annealing: expected at most {most} denoising steps, those of the request's head, got "
                f"{self.annealing.first}; raise num_sampling_steps"
            )
        return self.annealing.by_rank(steps, total, windows)

    def draw(self, head: Head, request: HeadRequest, counts: Tensor | None) -> Trajectory:
        """Return the trajectories of R tokens, with `counts` int64 [R] denoising steps each where they are annealed."""
        if counts is None:
            return self._sample(head, request)
        value, mean, log_scale, state = (torch.empty_like(request.initial) for _ in range(4))
        log_det = request.initial.new_empty(len(counts))
        for count in counts.unique().tolist():
            rows = (counts == count).nonzero()[:, 0]
            part = request.rows(rows)
            drawn = self._sample(head.thinned(count), part)
            request.calls += part.calls
            value[rows], mean[rows], log_scale[rows] = drawn.value, drawn.last.mean, drawn.last.log_scale
            state[rows], log_det[rows] = drawn.state, drawn.log_det
        return Trajectory(value, Gaussian(mean, log_scale), state, log_det)

    def _sample(self, head: Head, request: HeadRequest) -> Trajectory:
        z = request.z[0] if request.guidance is None else request.z
        noise, how = request.noise[:, : head.steps], dict(guidance=request.guidance, temperature=request.temperature)
        if self.window == 1:
            request.calls += head.steps
            return sample(head, z, request.initial, noise, **how)
        uniform = request.keys.uniform(Purpose.ACCEPT, head.steps)
        result = speculate(
            head, z, request.initial, noise, uniform, head.step_drafter(), window=self.window, keys=request.keys, **how
        )
        request.calls += result.calls
        return result.trajectory


@method(
    "head",
    domain="continuous",
    kind="decoding",
    title="head",
    exact=True,
    models=("masked", "causal"),
    order=1,
    about="the head drafts its own denoising steps",
)
def head(window: int = 8) -> HeadSampling:
    """`HeadSampling` without annealing.

    Args:
        window: The number of states that a call of the head evaluates per token.
    """
    return HeadSampling(window)

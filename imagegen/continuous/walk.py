"""How a head is walked: plainly, ahead of itself, and for how many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.core.keys import Keys, Purpose
from mmspec.imagegen.continuous.disa import Annealing
from mmspec.imagegen.continuous.head import Gaussian, Head, Trajectory, sample
from mmspec.imagegen.continuous.head_time import speculate
from mmspec.imagegen.continuous.mar.order import Step


@dataclass(slots=True)
class Request:
    """R tokens to be drawn. z: float [C, R, width].   initial: float [R, d].   noise: float [R, T, d].
    guidance: float [R] or None.   keys: one row for each of R.   calls: of the head so far.
    """

    z: Tensor
    initial: Tensor
    noise: Tensor
    guidance: Tensor | None
    temperature: float
    keys: Keys | None = None
    calls: int = 0

    def rows(self, chosen: Tensor) -> Request:
        guidance = None if self.guidance is None else self.guidance[chosen]
        keys = None if self.keys is None else Keys(self.keys.seeds[chosen], self.keys.round)
        return Request(self.z[:, chosen], self.initial[chosen], self.noise[chosen], guidance, self.temperature, keys)


@dataclass(frozen=True, slots=True)
class HeadWalk:
    """window: states that one call of the head evaluates a token; 1 is plain sampling, more is speculation over head time
    (`speculate`), which is exact.   annealing: None walks as long for every token; else see `Annealing`, which is relaxed.
    Raises ValueError for a window below 1.
    """

    window: int = 1
    annealing: Annealing | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.window < 1:
            raise ValueError(f"window: expected at least 1 state, got {self.window}; 1 is plain sampling")

    @property
    def exact(self) -> bool:
        """Whether tokens have the law of plain sampling."""
        return self.annealing is None

    def check(self, temperature: float) -> None:
        """Raises ValueError for a window that has nothing to draw: without noise there is no law to speculate on."""
        if self.window > 1 and not temperature > 0:
            raise ValueError(f"temperature: expected a number above 0 to speculate over head time, got {temperature}; use a "
                             "window of 1")  # fmt: skip

    def counts(
        self, steps: Sequence[Step], total: int, most: int, windows: Sequence[int] | None = None
    ) -> Tensor | None:
        """int64 [total], denoising steps by rank in the order; None where every token has as many.
        windows: see `Annealing.by_rank`.   Raises ValueError for more than `most`, the steps that there is noise for.
        """
        if self.annealing is None:
            return None
        if self.annealing.first > most:
            raise ValueError(f"annealing: expected at most {most} denoising steps, as many as the request's head has, got "
                             f"{self.annealing.first}; raise num_sampling_steps")  # fmt: skip
        return self.annealing.by_rank(steps, total, windows)

    def draw(self, head: Head, request: Request, counts: Tensor | None) -> Trajectory:
        """Walks to R tokens. counts: int64 [R], denoising steps of each where they are annealed."""
        if counts is None:
            return self._walk(head, request)
        value, mean, log_scale, state = (torch.empty_like(request.initial) for _ in range(4))
        log_det = request.initial.new_empty(len(counts))
        for count in counts.unique().tolist():
            rows = (counts == count).nonzero()[:, 0]
            part = request.rows(rows)
            walk = self._walk(head.thinned(count), part)
            request.calls += part.calls
            value[rows], mean[rows], log_scale[rows] = walk.value, walk.last.mean, walk.last.log_scale
            state[rows], log_det[rows] = walk.state, walk.log_det
        return Trajectory(value, Gaussian(mean, log_scale), state, log_det)

    def _walk(self, head: Head, request: Request) -> Trajectory:
        z = request.z[0] if request.guidance is None else request.z
        noise, how = request.noise[:, : head.steps], dict(guidance=request.guidance, temperature=request.temperature)
        if self.window == 1:
            request.calls += head.steps
            return sample(head, z, request.initial, noise, **how)
        uniform = request.keys.uniform(Purpose.ACCEPT, head.steps)
        made = speculate(
            head, z, request.initial, noise, uniform, head.hold(), window=self.window, keys=request.keys, **how
        )
        request.calls += made.calls
        return made.trajectory

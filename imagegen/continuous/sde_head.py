"""A flow-matching head sampled as a stochastic differential equation: the scale of a step does not depend on the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head import Gaussian
from mmspec.imagegen.continuous.hold import HoldClean

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]


class TimedVelocity(Protocol):
    """A velocity at the timesteps of a schedule, as `TimedMLP` is one."""

    def __call__(self, x: Tensor, step: Tensor | int, z: Tensor) -> Tensor: ...

    def paired(self, x: Tensor, step: Tensor | int, z: Tensor) -> tuple[Tensor, Tensor]: ...


class Network(Protocol):
    """Gives itself at timesteps 1000 t."""

    def at(self, timesteps: Tensor) -> TimedVelocity: ...


class SDEHead:
    """A `Head` over a velocity field v(x, t | z), t from 0 (noise) to 1 (token), stepped by Euler-Maruyama.

    "NextStep-1: Toward Autoregressive Image Generation with Continuous Tokens at Scale". Over [0, span], in equal steps of
    dt: x' = x + (v + (1 - t) score) dt + sqrt(2 (1 - t) dt) noise with score = (t v - x) / (1 - t), which is the score of
    the path x_t = (1 - t) noise + t token. Below span 1 one plain step x' = x + (1 - span) v follows: it adds no noise,
    its log scale is -inf, and no law of the token given x_1 is left to judge by. NextStep-1 takes 20 steps to 0.96.
    With span 1 the last step adds noise too, sqrt(2) dt of it.
    Guidance steers the velocity: null + s (conditional - null).

    net: of the velocity, such as a `DenoisingMLP` with d values out.   dim: d.
    Raises ValueError for fewer than 2 steps in all and a span outside (0, 1].
    """

    network_variance = False

    def __init__(self, net: Network, dim: int, *, steps: int = 20, span: float = 0.96,
                 device: torch.device | str = "cpu"):  # fmt: skip
        if not 0 < span <= 1:
            raise ValueError(
                f"span: expected a share of the time above 0 and up to 1, got {span}; 0.96 is NextStep-1's"
            )
        self.last_noise = span == 1
        self.dim, self.steps = dim, steps + (not self.last_noise)
        if steps < 1 or self.steps < 2:
            raise ValueError(f"steps: expected at least {1 + self.last_noise}, got {steps}; use more")
        time = torch.arange(steps, dtype=torch.float64) * span / steps
        length = torch.full((steps,), span / steps, dtype=torch.float64)
        scale = (2 * (1 - time) * length).sqrt()
        if not self.last_noise:
            time, length, scale = (
                torch.cat((table, table.new_tensor([end])))
                for table, end in ((time, span), (length, 1 - span), (scale, 0.0))
            )
        # step 0 is the last in time
        self._tables = torch.stack((time, length, scale.log())).flip(1).float().to(device)  # [3, T]
        self.velocity = net.at(1000 * self._tables[0])

    def hold(self) -> HoldClean:
        """What of a prediction speculation over head time carries over to the next steps: x_0 = x + (1 - t) v."""
        time, length, log_scale = self._tables
        noisy = log_scale.isfinite()
        push = length * (1 + time * noisy) / (1 - time)
        return HoldClean(1 - push - length * noisy, push, log_scale, log_scale)

    def gaussian(self, x: Tensor, step: Tensor | int, z: Tensor, guidance: Tensor | None = None) -> Gaussian:
        time, length, log_scale = self._tables[:, step].reshape(3, -1, 1)
        if guidance is None:
            speed = self.velocity(x, step, z).float()
        else:
            cond, null = self.velocity.paired(x, step, z)
            speed = null + guidance[:, None] * (cond - null)
        # (1 - t) score = t v - x, which is finite up to t = 1
        drift = speed + torch.where(log_scale.isfinite(), time * speed - x, 0.0)
        return Gaussian(x + length * drift, log_scale.expand_as(x))

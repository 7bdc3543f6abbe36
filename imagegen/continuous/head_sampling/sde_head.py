"""A flow-matching head sampled as a stochastic differential equation; a step's scale does not depend on the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head_sampling.head import CleanTokenDrafter, Gaussian, StepTables

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]


class TimedVelocity(Protocol):
    def about(self, z: Tensor) -> Any: ...

    def __call__(self, x: Tensor, step: Tensor | int, about: Any, row: Tensor | None = None) -> Tensor: ...


class Network(Protocol):
    """A network that can be evaluated at timesteps 1000 t."""

    def at(self, timesteps: Tensor) -> TimedVelocity: ...


class SDEHead:
    """A `Head` over a velocity v(x, t | z), t from 0 (noise) to 1 (token), stepped by Euler-Maruyama. "NextStep-1:
    Toward Autoregressive Image Generation with Continuous Tokens at Scale". A step is x' = x + (v + (1 - t) score) dt +
    sqrt(2 (1 - t) dt) noise. The score of the path x_t = (1 - t) noise + t token is (t v - x) / (1 - t). Such steps
    cover [0, span]; below span 1 a plain step x' = x + (1 - span) v follows. It has no noise, so no distribution given
    x_1 is left to verify. NextStep-1 uses 20 steps to 0.96. Guidance: null + s (conditional - null)."""

    network_variance = False

    def __init__(
        self, net: Network, dim: int, *, steps: int = 20, span: float = 0.96, device: torch.device | str = "cpu"
    ):
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
        self._time, self._length, scale = torch.stack((time, length, scale)).flip(1)
        self._log_scale = scale.log()
        noisy = scale > 0
        # (1 - t) score = t v - x, which is finite up to t = 1
        self._state, self._speed = 1 - self._length * noisy, self._length * (1 + self._time * noisy)
        self._tables, self._device = StepTables(device, self._state, self._speed, self._log_scale), device
        self._net, self._span = net, span
        self.velocity = net.at((1000 * self._time).float().to(device))

    def step_drafter(self) -> CleanTokenDrafter:
        """Return the drafter of the next steps for speculation over head time, which stores x_0 = x + (1 - t) v."""
        push = self._speed / (1 - self._time)
        tables = (self._state - push, push, self._log_scale, self._log_scale)
        return CleanTokenDrafter(*(table.to(self._device) for table in tables))

    def thinned(self, steps: int) -> SDEHead:
        if steps > self.steps:
            raise ValueError(f"steps: expected 2 to {self.steps} of the head's, got {steps}; use as many or fewer")
        drawn = steps - (not self.last_noise)
        return (
            self
            if steps == self.steps
            else SDEHead(self._net, self.dim, steps=drawn, span=self._span, device=self._device)
        )

    def about(self, z: Tensor) -> Any:
        return self.velocity.about(z)

    def gaussian(
        self, x: Tensor, step: Tensor | int, about: Any, guidance: Tensor | None = None, row: Tensor | None = None
    ) -> Gaussian:
        of_state, of_speed, log_scale = self._tables.at(step)
        out = self.velocity(x, step, about, row).float()
        speed = out[0] if guidance is None else out[1] + guidance[:, None] * (out[0] - out[1])
        return Gaussian(of_state * x + of_speed * speed, torch.zeros_like(x) + log_scale)

"""Denoising heads of a few numbers: DDPM means around a prediction that is not linear, with and without scales of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.imagegen.continuous.head_sampling.head import CleanTokenDrafter, Gaussian
from mmspec.imagegen.continuous.head_sampling.sde_head import Velocity


class WaveHead:
    """mean = pull[t] x + push[t] f(x, t, z), scales between two tables. z: [R, 1 + dim] or more; its first column is
    not read by the law, so tests may number rows with it.

    bend: how strongly the prediction depends on the state; 0 lets every draft stand.   seen: float [rows, T, d], the state
    last evaluated for each row and step; kept once `watch` named the rows.
    """

    def __init__(
        self, steps: int, dim: int, *, network_variance: bool = False, last_noise: bool = False, bend: float = 1.0
    ):
        self.steps, self.dim, self.bend = steps, dim, bend
        self.network_variance, self.last_noise = network_variance, last_noise
        level = torch.linspace(0.97, 0.15, steps, dtype=torch.float64)  # alpha-bar, cleanest first
        before = torch.cat((torch.ones(1, dtype=torch.float64), level[:-1]))
        beta = 1 - level / before
        self.pull = (1 - before) * (1 - beta).sqrt() / (1 - level)
        self.push = beta * before.sqrt() / (1 - level)
        low = (beta * (1 - before) / (1 - level)).clamp_min(0.3 * beta[0]).log() / 2
        self.low, self.high = low, low + 0.8 if network_variance else low
        self.seen: Tensor | None = None

    def watch(self, rows: int, dtype: torch.dtype = torch.float32) -> None:
        self.seen = torch.full((rows, self.steps, self.dim), torch.nan, dtype=dtype)

    def step_drafter(self) -> CleanTokenDrafter:
        return CleanTokenDrafter(self.pull, self.push, self.low, self.high)

    def predict(self, x: Tensor, step: Tensor, z: Tensor) -> Tensor:
        tilt = 0.3 * step[:, None] / self.steps
        return self.bend * ((1.3 + tilt) * x + z[:, 1 : 1 + self.dim]).sin() + 0.2 * z[:, 1 : 1 + self.dim]

    def thinned(self, steps: int) -> WaveHead:
        raise NotImplementedError

    def about(self, z: Tensor) -> Tensor:
        return z

    def gaussian(
        self, x: Tensor, step: Tensor | int, about: Tensor, guidance: Tensor | None = None, row: Tensor | None = None
    ) -> Gaussian:
        step, z = torch.as_tensor(step).expand(len(x)), about if row is None else about[..., row, :]
        own = z if guidance is None else z[0]
        clean = self.predict(x, step, own)
        if guidance is not None:
            null = self.predict(x, step, z[1])
            clean = null + guidance[:, None] * (clean - null)
        if self.seen is not None:
            self.seen[own[:, 0].long(), step] = x
        low, high = (table.to(x)[step][:, None] for table in (self.low, self.high))
        share = (1 + (3 * x + step[:, None]).sin()) / 2 if self.network_variance else torch.zeros_like(x)
        mean = self.pull.to(x)[step][:, None] * x + self.push.to(x)[step][:, None] * clean
        return Gaussian(mean, low + share * (high - low))


class Field:
    """A velocity v(x, 1000 t, z) that is a formula, as the network of an `SDEHead`."""

    def __init__(self, velocity: Velocity, timesteps: Tensor | None = None):
        self.velocity, self.timesteps = velocity, timesteps

    def at(self, timesteps: Tensor) -> Field:
        return Field(self.velocity, timesteps)

    def about(self, z: Tensor) -> Tensor:
        return z if z.dim() == 3 else z[None]

    def __call__(self, x: Tensor, step: Tensor | int, about: Tensor, row: Tensor | None = None) -> Tensor:
        about = about if row is None else about[:, row]
        return torch.stack([self.velocity(x, self.timesteps[step].reshape(-1), z) for z in about])

"""The noise of an image: it belongs to (position, step), so whoever draws a token, and whenever, draws it with the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mmspec.core.draft import gather_nodes
from mmspec.core.keys import Keys


class Noise(Protocol):
    """steps, dim: T and d of the head it is for."""

    steps: int
    dim: int

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """(initial float32 [B, K, d], noise float32 [B, K, T, d], entry t for step t) of positions int64 [B, K]."""


@dataclass(frozen=True, slots=True)
class KeyedNoise:
    """Made anew whenever it is asked for, from the seeds of the rows. A head with more steps has the same noise at the steps
    of a shorter one, counted from the last."""

    keys: Keys
    steps: int
    dim: int

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        drawn = self.keys.normal_at(position, (self.steps + 1) * self.dim)
        drawn = drawn.unflatten(-1, (self.steps + 1, self.dim))
        return drawn[..., 0, :], drawn[..., 1:, :]


class GivenNoise:
    """Noise that was drawn elsewhere. initial: float [B, L, d].   noise: float [B, L, T, d].

    Raises ValueError for shapes that do not belong together and, on use, for another number of rows.
    """

    def __init__(self, initial: Tensor, noise: Tensor):
        if initial.dim() != 3 or noise.dim() != 4 or noise.shape[:2] != initial.shape[:2] or (
            noise.shape[-1] != initial.shape[-1]
        ):  # fmt: skip
            raise ValueError(f"noise: expected [B, L, d] and [B, L, T, d], got {tuple(initial.shape)} and "
                             f"{tuple(noise.shape)}; give one entry a position and step")  # fmt: skip
        self.initial, self.noise = initial.float(), noise.float()
        self.steps, self.dim = noise.shape[2:]

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        if len(position) != len(self.initial):
            raise ValueError(
                f"noise: expected a row for each of {len(position)} images, got {len(self.initial)}; draw more"
            )
        return tuple(gather_nodes(one.to(position.device), position) for one in (self.initial, self.noise))

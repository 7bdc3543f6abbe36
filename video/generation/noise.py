"""The noise of a video: it belongs to (block, draw), so whoever draws a block, and whenever, draws it with the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.keys import Keys

_DRAWS = 1024  # reserved for a block: the first, and one for every time it is noised again


class BlockNoise(Protocol):
    """batch: rows it has noise for."""

    batch: int

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        """float32 [B, *shape], standard normals: draw 0 is what a block starts from, draw i what it is noised with after i
        passes."""


@dataclass(frozen=True, slots=True)
class KeyedBlockNoise:
    """Made anew from the seeds of the rows whenever it is asked for: a target that draws a block again, after whatever was
    decided before, has what the drafter had and what it would have had alone."""

    keys: Keys

    @property
    def batch(self) -> int:
        return len(self.keys.seeds)

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        if not 0 <= draw < _DRAWS:
            raise ValueError(f"draw: expected 0..{_DRAWS - 1}, got {draw}; take fewer steps a block")
        seeds = self.keys.seeds
        position = torch.full((len(seeds), 1), block * _DRAWS + draw, dtype=torch.long, device=seeds.device)
        return self.keys.normal_at(position, prod(shape)).reshape(-1, *shape)


class GivenBlockNoise:
    """Noise that was drawn elsewhere. first: per block, float [B, C, F, H, W].   fresh: per block, as many as are needed of
    the same shape, entry i for after i + 1 passes.   Raises ValueError on use for what was not given."""

    def __init__(self, first: Sequence[Tensor], fresh: Sequence[Sequence[Tensor]] = ()):
        self.blocks = [[one, *(fresh[i] if i < len(fresh) else ())] for i, one in enumerate(first)]
        self.batch = len(first[0])

    def at(self, block: int, draw: int, shape: Sequence[int]) -> Tensor:
        drawn = self.blocks[block] if block < len(self.blocks) else []
        if draw >= len(drawn) or tuple(drawn[draw].shape[1:]) != tuple(shape):
            got = tuple(drawn[draw].shape) if draw < len(drawn) else "none"
            raise ValueError(
                f"noise: expected {self.batch} x {tuple(shape)} for draw {draw} of block {block}, got {got}; give it"
            )
        return drawn[draw]

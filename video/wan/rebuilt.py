"""Context that is read anew for every block, at positions from 0: a few latents instead of a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.video.chunk_cache import ChunkCache
from mmspec.video.generation.noise import BlockNoise
from mmspec.video.model import Film
from mmspec.video.state import FilmState
from mmspec.video.wan.state import WanState

if TYPE_CHECKING:
    from mmspec.video.wan.video import WanVideo


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Krea Realtime's context: the film's first latent frame and its last ones, `frames` together, in one clean pass before
    every block. Positions never leave those of training, and nothing is kept between blocks, so nothing has to be caught up.

    anchor: gives the first of them, [B, C, 1, H, W], for a block's number once frames have slid out. Krea encodes the oldest
    pixel frame of the window by itself, because a causal autoencoder treats the first latent specially; None takes the
    film's first latent, which was made so.
    """

    frames: int = 3
    anchor: Callable[[int], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames: expected at least 1, got {self.frames}; keep one frame of context or more")

    def open(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> RebuiltState:
        return RebuiltState(video, text, noise, size, self)


class RebuiltState(WanState, FilmState):
    """The state of a request that keeps its prompt and nothing else."""

    def __init__(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int], context: Rebuilt):
        super().__init__(video, text, noise, size)
        self.context = context

    @torch.no_grad()
    def generate(self, film: Film) -> Tensor:
        cache = ChunkCache()
        if film:
            latents = self.window(film)
            self._keep(latents, self.video.plan.cut(latents.shape[2]), len(film), cache)
        return self._generate(len(film), cache)

    def window(self, film: Film) -> Tensor:
        """The context of the block that follows the film, [B, C, F, H, W]."""
        most, device = self.context.frames, self.video.transformer.device
        if sum(block.shape[2] for block in film) <= most:
            return torch.cat([block.to(device) for block in film], 2)
        first = film[0][:, :, :1] if self.context.anchor is None else self.context.anchor(len(film))
        late, held = [], 0
        for block in reversed(film):
            late, held = [block.to(device), *late], held + block.shape[2]
            if held >= most - 1:
                break
        return torch.cat((first.to(device, late[0].dtype), torch.cat(late, 2)[:, :, held - (most - 1) :]), 2)

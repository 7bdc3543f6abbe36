"""One request with one block video model: what every family's state holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from mmspec.video.generation.noise import BlockNoise
from mmspec.video.generation.sampler import Sampler
from mmspec.video.model import Film
from mmspec.video.plan import BlockPlan

# (x [B, C, F, H, W], timesteps float32 [B, F], where the step ends or None) -> the flow, of x's shape
Flow = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Drawing(Protocol):
    """What a state reads of its model. latent_dtype: in which a block is drawn."""

    channels: int
    plan: BlockPlan
    sampler: Sampler
    device: torch.device
    dtype: torch.dtype
    latent_dtype: torch.dtype


class VideoState:
    """Prompts by block, noise, and the walk from noise to a block.

    text: float [B, L, d].   noise: of (block, draw).   size: rows and columns of a latent frame.
    Raises ValueError for noise of another number of rows.
    """

    watermark = 0

    def __init__(self, video: Drawing, text: Tensor, noise: BlockNoise, size: tuple[int, int]):
        if noise.batch != len(text):
            raise ValueError(f"noise: expected {len(text)} rows, one a prompt, got {noise.batch}; give as many seeds")
        self.video, self.noise, self.size = video, noise, size
        self.passes = self.context_passes = 0
        self._texts = [(0, text)]

    def switch(self, text: Tensor, block: int) -> None:
        """Another prompt from `block` on. Raises ValueError for a block that has been read and for one before the last
        switch."""
        first = max(self.watermark, self._texts[-1][0])
        if block < first:
            raise ValueError(f"block: expected {first} or later, since earlier ones have their prompt, got {block}; switch "
                             "for a block that is not drawn yet")  # fmt: skip
        if text.shape[0] != self.noise.batch:
            raise ValueError(
                f"text: expected {self.noise.batch} rows, got {text.shape[0]}; give a prompt for each video"
            )
        if block == self._texts[-1][0]:
            self._texts.pop()
        self._texts.append((block, text))

    def _text(self, block: int) -> Tensor:
        """The prompt of a block: the same tensor for as long as it is the same prompt."""
        return next(text for first, text in reversed(self._texts) if first <= block)

    def _since(self, block: int) -> int:
        """The block from which on its prompt holds."""
        return next(first for first, _ in reversed(self._texts) if first <= block)

    def _draw(self, block: int, flow: Flow, sampler: Sampler | None = None) -> Tensor:
        """Latents of a block from its reserved noise. sampler: None for the model's."""
        video, sampler = self.video, sampler or self.video.sampler
        shape = (video.channels, video.plan.frames(block), *self.size)

        def velocity(x: Tensor, timestep: float, until: float) -> Tensor:
            self.passes += 1
            end = self._time(until, shape[1]) if sampler.until else None
            return flow(x, self._time(timestep, shape[1]), end)

        def noise(draw: int) -> Tensor:
            return self.noise.at(block, draw, shape).to(video.device, video.latent_dtype)

        return sampler.draw(velocity, noise)

    def _time(self, timestep: float, frames: int) -> Tensor:
        return torch.full((self.noise.batch, frames), timestep, dtype=torch.float32, device=self.video.device)


class FilmState(VideoState):
    """A state of models that keep nothing between blocks: what they draw follows from the film."""

    def absorb(self, film: Film) -> None:
        return None

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: None) -> None:
        return None

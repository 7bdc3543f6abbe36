"""The interface of a block video model: its plan of blocks, model and state, and the base classes of both.

A model draws a block given all blocks before it. Every model reads the committed latents from the same list, and its state
covers a beginning of that list. So a rejected draft needs no undoing, a model that paused catches up, and drafter and target
can be any two models of the same latents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.io.validation import check_fields
from mmspec.video.generation import BlockNoise, Sampler


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Blocks of `size` latent frames, the first of `first`, None for as many; or the first few of as many as it lists.

    apart: whether every block is a video of its own to the autoencoder, whose first latent frame stands for one frame, as in
    Helios; else the whole video is one.   Raises ValueError for blocks of no frame.
    """

    size: int = 3
    first: int | tuple[int, ...] | None = None
    apart: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.first is not None and not isinstance(self.first, int):
            object.__setattr__(self, "first", tuple(self.first))
        if min(self.size, *self._heads, 1) < 1:
            raise ValueError(
                f"plan: expected blocks of at least one frame, got {self.size} and {self.first}; use more frames"
            )

    @property
    def _heads(self) -> tuple[int, ...]:
        """Frames of the blocks that have a size of their own."""
        return () if self.first is None else (self.first,) if isinstance(self.first, int) else self.first

    def __str__(self) -> str:
        heads = ", ".join(map(str, self._heads))
        first = f"{heads}, then " if heads else ""
        return f"{first}{self.size} latent frames a block{', each a video of its own' if self.apart else ''}"

    def frames(self, block: int) -> int:
        """Latent frames of a block."""
        heads = self._heads
        return heads[block] if block < len(heads) else self.size

    def start(self, block: int) -> int:
        """The first latent frame of a block."""
        heads = self._heads[:block]
        return sum(heads) + (block - len(heads)) * self.size

    def shown(self, block: int, each: int) -> int:
        """Pixel frames before a block, where a latent frame stands for `each` and the first of a video for one."""
        return self.start(block) * each - (each - 1) * (block if self.apart else min(block, 1))

    def sizes(self, first: int, last: int) -> tuple[int, ...]:
        """Frames of each of the blocks first..last - 1."""
        return tuple(self.frames(block) for block in range(first, last))

    def cut(self, frames: int) -> tuple[int, ...]:
        """Frames of each block of a video of so many latent frames; the last may be a part of one."""
        sizes = []
        while frames > 0:
            sizes.append(min(frames, self.frames(len(sizes))))
            frames -= sizes[-1]
        return tuple(sizes)


CommittedBlocks = Sequence[Tensor]  # committed latents, one tensor [B, C, F, H, W] a block


class BlockVideoState(Protocol):
    """One request with one model.

    watermark: blocks of the video it has read; 0 where nothing is kept between blocks.
    passes: forward passes so far, those that read context included.   context_passes: how many of them read context.
    """

    watermark: int
    passes: int
    context_passes: int

    def generate(self, video: CommittedBlocks) -> Tensor:
        """Latents [B, C, F, H, W] of the next block: a pure function of the video, the prompts, the noise and the weights.

        Reads the unread blocks of the video; of the drawn block nothing stays."""

    def absorb(self, video: CommittedBlocks) -> None:
        """Reads the blocks watermark.. of the video, in order, as `generate` would at its next call; nothing where the model
        keeps nothing. Called after every commit it makes the state eager, never called lazy."""

    def snapshot(self) -> object:
        """What has been read, to come back to; no copy of keys and values."""

    def restore(self, snapshot: object) -> None:
        """Back to a snapshot, after having read blocks that were not kept."""

    def switch(self, text: Tensor, block: int) -> None:
        """Another prompt from this block on; blocks before it keep theirs, read or unread."""


class BlockVideoModel(Protocol):
    """Weights and settings of a model; `open` makes the state of a request.

    name: what tables print.   channels: of the latents.   plan: frames of its blocks. Drafter and target agree in both.
    passes: a block's forward passes, context not counted.   device: of the weights.
    """

    name: str
    device: torch.device
    channels: int
    plan: BlockPlan
    passes: int

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> BlockVideoState:
        """The state of B videos. text: float [B, L, d] of the text encoder.   size: rows and columns of a latent frame."""


# (x [B, C, F, H, W], timesteps float32 [B, F], where the step ends or None) -> the flow, of x's shape
FlowFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class TransformerVideo:
    """The base of block video models that hold one transformer.

    transformer: the weights, with the channels of the latents as `config.in_channels`.   sampler: from noise to a block.
    """

    __slots__ = ()
    transformer: Any
    plan: BlockPlan
    sampler: Sampler

    @property
    def channels(self) -> int:
        return self.transformer.config.in_channels

    @property
    def device(self) -> torch.device:
        return self.transformer.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.transformer.dtype

    @property
    def latent_dtype(self) -> torch.dtype:
        """In which a block is drawn."""
        return self.dtype

    @property
    def passes(self) -> int:
        return self.sampler.passes

    def _check_size(self, size: tuple[int, int], patch: Sequence[int], kind: str = "a patch") -> None:
        """Refuse rows and columns of a latent frame that `patch`, frames, rows and columns, does not divide."""
        _, rows, columns = patch
        if size[0] % rows or size[1] % columns or min(size) < 1:
            raise ValueError(f"size: expected multiples of {rows} and {columns}, rows and columns of {kind}, got {size}; use "
                             "another size of picture")  # fmt: skip


class VideoState:
    """Prompts by block, noise, and the walk from noise to a block.

    text: float [B, L, d].   noise: of (block, draw).   size: rows and columns of a latent frame.
    Raises ValueError for noise of another number of rows.
    """

    watermark = 0

    def __init__(self, model: TransformerVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]):
        if noise.batch != len(text):
            raise ValueError(f"noise: expected {len(text)} rows, one a prompt, got {noise.batch}; give as many seeds")
        self.model, self.noise, self.size = model, noise, size
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

    def _check_read(self, video: CommittedBlocks) -> None:
        """Refuse a video that ends before a block that has been read."""
        if len(video) < self.watermark:
            raise ValueError(f"video: expected at least the {self.watermark} blocks that were read, got {len(video)}; restore "
                             "a snapshot from before the rejected blocks")  # fmt: skip

    def _text(self, block: int) -> Tensor:
        """The prompt of a block: the same tensor for as long as it is the same prompt."""
        return next(text for first, text in reversed(self._texts) if first <= block)

    def _since(self, block: int) -> int:
        """The block from which on its prompt holds."""
        return next(first for first, _ in reversed(self._texts) if first <= block)

    def _draw(self, block: int, flow: FlowFunction, sampler: Sampler | None = None) -> Tensor:
        """Latents of a block from its reserved noise. sampler: None for the model's."""
        model, sampler = self.model, sampler or self.model.sampler
        shape = (model.channels, model.plan.frames(block), *self.size)

        def velocity(x: Tensor, timestep: float, until: float) -> Tensor:
            self.passes += 1
            end = self._time(until, shape[1]) if sampler.until else None
            return flow(x, self._time(timestep, shape[1]), end)

        def noise(draw: int) -> Tensor:
            return self.noise.at(block, draw, shape).to(model.device, model.latent_dtype)

        return sampler.draw(velocity, noise)

    def _time(self, timestep: float, frames: int) -> Tensor:
        return torch.full((self.noise.batch, frames), timestep, dtype=torch.float32, device=self.model.device)


class StatelessVideoState(VideoState):
    """A state of models that keep nothing between blocks: what they draw follows from the video."""

    def absorb(self, video: CommittedBlocks) -> None:
        return None

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: None) -> None:
        return None

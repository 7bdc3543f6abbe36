"""The interface of a block video model: plan of blocks, model and state, and base classes.

A model generates a block from all blocks before it. All models read the committed latents from the same list, and the
state of each covers a prefix of that list. So a rejected draft needs no undo, a model that paused catches up, and
drafter and target can be any two models with the same latents.
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
    """The latent frames of each block.

    Args:
        size: The frames of a block.
        first: The frames of the first block, or of the first few blocks; None for `size`.
        apart: Whether the autoencoder treats each block as its own video, whose first latent frame stands for a single
            pixel frame, as in Helios.

    Raises:
        ValueError: A block has no frame.
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
        return () if self.first is None else (self.first,) if isinstance(self.first, int) else self.first

    def __str__(self) -> str:
        heads = ", ".join(map(str, self._heads))
        first = f"{heads}, then " if heads else ""
        return f"{first}{self.size} latent frames per block{', each a video of its own' if self.apart else ''}"

    def frames(self, block: int) -> int:
        """Return the latent frames of a block."""
        heads = self._heads
        return heads[block] if block < len(heads) else self.size

    def start(self, block: int) -> int:
        """Return the first latent frame of a block."""
        heads = self._heads[:block]
        return sum(heads) + (block - len(heads)) * self.size

    def shown(self, block: int, each: int) -> int:
        """Return the pixel frames before a block, for `each` per latent frame and 1 for the first of a video."""
        return self.start(block) * each - (each - 1) * (block if self.apart else min(block, 1))

    def sizes(self, first: int, last: int) -> tuple[int, ...]:
        """Return the frames of each of the blocks first..last - 1."""
        return tuple(self.frames(block) for block in range(first, last))

    def cut(self, frames: int) -> tuple[int, ...]:
        """Return the frames of each block of a video of `frames` latent frames; the last block may be incomplete."""
        sizes = []
        while frames > 0:
            sizes.append(min(frames, self.frames(len(sizes))))
            frames -= sizes[-1]
        return tuple(sizes)


CommittedBlocks = Sequence[Tensor]  # committed latents, a tensor [B, C, F, H, W] per block


class BlockVideoState(Protocol):
    watermark: int  # blocks that it has read; 0 for models without memory
    passes: int  # forward passes so far, with those that read context
    context_passes: int

    def generate(self, video: CommittedBlocks) -> Tensor:
        """Return latents [B, C, F, H, W] of the next block: a pure function of video, prompts, noise and weights. The
        unread blocks are read first; the state keeps nothing of the generated block."""

    def absorb(self, video: CommittedBlocks) -> None:
        """Read the blocks from `watermark` on, in order; a call after every commit makes the state eager, otherwise it
        is lazy."""

    def snapshot(self) -> object:
        """Return the state for `restore`, without a copy of keys and values."""

    def restore(self, snapshot: object) -> None:
        """Return to a snapshot, after reading blocks that were rejected."""

    def switch(self, text: Tensor, block: int) -> None:
        """Change the prompt from this block on; earlier blocks keep theirs, read or unread."""


class BlockVideoModel(Protocol):
    """The weights and settings of a model; drafter and target must agree in channels and plan.

    Attributes:
        name: The name in tables.
        passes: Forward passes per block, without those that read context.
    """

    name: str
    device: torch.device
    channels: int
    plan: BlockPlan
    passes: int

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> BlockVideoState:
        """Return the state of B videos of `size` latent cells, rows and columns, from text states float [B, L, d]."""


# (x [B, C, F, H, W], timesteps float32 [B, F], timesteps at the end of the step or None) -> the flow, of x's shape
FlowFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class TransformerVideo:
    """The base of block video models with a single transformer."""

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
        return self.transformer.dtype

    @property
    def latent_dtype(self) -> torch.dtype:
        return self.dtype

    @property
    def passes(self) -> int:
        return self.sampler.passes

    def _check_size(self, size: tuple[int, int], patch: Sequence[int], kind: str = "a patch") -> None:
        _, rows, columns = patch
        if size[0] % rows or size[1] % columns or min(size) < 1:
            raise ValueError(
                f"size: expected multiples of {rows} and {columns}, rows and columns of {kind}, got {size}; use "
                "another size of picture"
            )


class VideoState:
    """The base of states, from text states float [B, L, d] and rows and columns of a latent frame."""

    watermark = 0

    def __init__(self, model: TransformerVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]):
        if noise.batch != len(text):
            raise ValueError(
                f"noise: expected {len(text)} rows, as many as prompts, got {noise.batch}; give a seed per prompt"
            )
        self.model, self.noise, self.size = model, noise, size
        self.passes = self.context_passes = 0
        self._texts = [(0, text)]

    def switch(self, text: Tensor, block: int) -> None:
        first = max(self.watermark, self._texts[-1][0])
        if block < first:
            raise ValueError(
                f"block: expected {first} or later, since earlier blocks have their prompt, got {block}; switch "
                "at a block that is not generated yet"
            )
        if text.shape[0] != self.noise.batch:
            raise ValueError(
                f"text: expected {self.noise.batch} rows, got {text.shape[0]}; give a prompt for each video"
            )
        if block == self._texts[-1][0]:
            self._texts.pop()
        self._texts.append((block, text))

    def _check_read(self, video: CommittedBlocks) -> None:
        if len(video) < self.watermark:
            raise ValueError(
                f"video: expected at least the {self.watermark} blocks that were read, got {len(video)}; restore "
                "a snapshot from before the rejected blocks"
            )

    def _text(self, block: int) -> Tensor:
        """Return the prompt of a block, the same tensor for all blocks of that prompt."""
        return next(text for first, text in reversed(self._texts) if first <= block)

    def _since(self, block: int) -> int:
        return next(first for first, _ in reversed(self._texts) if first <= block)

    def _draw(self, block: int, flow: FlowFunction, sampler: Sampler | None = None) -> Tensor:
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
    """A state of models without memory between blocks."""

    def absorb(self, video: CommittedBlocks) -> None:
        return None

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: None) -> None:
        return None

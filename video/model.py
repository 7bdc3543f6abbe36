"""What a block-by-block decoding asks of a video model.

A model draws a block given all blocks before it. What is decided, and by whom, it never sees: the committed latents are one
list, the film, that everybody is handed, and a model's state is what it has made of a beginning of that list. So a draft that
is not kept needs no undoing, a model that was not asked for a while is behind and catches up, and drafter and target can be
any two models of the same latents. Adapters of other families (AnyFlow FAR, Helios, SkyReels-V2) implement these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from mmspec.video.generation.noise import BlockNoise
from mmspec.video.plan import BlockPlan

Film = Sequence[Tensor]  # committed latents, one tensor [B, C, F, H, W] a block


class BlockVideoState(Protocol):
    """One request with one model.

    watermark: blocks of the film it has read; 0 where nothing is kept between blocks.
    passes: forward passes so far, those that read context included.   context_passes: how many of them read context.
    """

    watermark: int
    passes: int
    context_passes: int

    def generate(self, film: Film) -> Tensor:
        """Latents [B, C, F, H, W] of the block that follows the film: a pure function of the film, the prompts, the noise and
        the weights. Reads what of the film is unread; of the block that is drawn nothing stays."""

    def absorb(self, film: Film) -> None:
        """Reads the blocks watermark.. of the film, in order, as `generate` would at its next call; nothing where the model
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

"""A Wan model as a block video model: how its blocks are drawn, and what it keeps of those before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.video.generation.few_step import FewStep
from mmspec.video.generation.noise import BlockNoise
from mmspec.video.generation.sampler import Sampler
from mmspec.video.model import BlockVideoState
from mmspec.video.plan import BlockPlan
from mmspec.video.wan.cached import Cached
from mmspec.video.wan.transformer import CausalWan


class Context(Protocol):
    """What a model keeps of the blocks before the one it draws: `Cached` or `Rebuilt`."""

    def open(self, video: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> BlockVideoState:
        """The state of one request."""


@dataclass(frozen=True, slots=True)
class WanVideo:
    """transformer: of `wan_from_state_dict`.   context: `Cached` (Self-Forcing, CausVid) or `Rebuilt` (Krea).
    sampler: `FewStep` or `FlowMap`.   plan: frames of the blocks.   context_noise: timestep of the passes that read context.
    name: what tables print.
    """

    transformer: CausalWan
    context: Context = Cached()
    sampler: Sampler = FewStep()
    plan: BlockPlan = BlockPlan()
    context_noise: float = 0.0
    name: str = "wan"

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
        return self.transformer.dtype

    @property
    def passes(self) -> int:
        return self.sampler.passes

    def open(self, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> BlockVideoState:
        """The state of B videos. text: float [B, L, text_dim].   size: rows and columns of a latent frame.

        Raises ValueError for a size that is no multiple of the patches, and as the contexts do.
        """
        _, rows, columns = self.transformer.config.patch_size
        if size[0] % rows or size[1] % columns or min(size) < 1:
            raise ValueError(f"size: expected multiples of {rows} and {columns}, rows and columns of a patch, got {size}; use "
                             "another size of picture")  # fmt: skip
        return self.context.open(self, text, noise, size)

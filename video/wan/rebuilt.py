"""Context that is read anew for every block, at positions from 0: a few latents instead of a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.io.validation import check_fields
from mmspec.video.chunk_cache import ChunkCache
from mmspec.video.generation import BlockNoise
from mmspec.video.model import CommittedBlocks
from mmspec.video.vae import StreamingVAE, VAEState
from mmspec.video.wan.video import WanState

if TYPE_CHECKING:
    from mmspec.video.wan.video import WanVideo


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Krea Realtime's context: the video's first latent frame and its last ones, `frames` together, in one clean pass before
    every block. Positions never leave those of training, and no keys are kept between blocks, so none have to be caught up.

    vae: encodes the oldest pixel frame of the context by itself, once frames have slid out, as the first latent, as Krea does:
    a causal autoencoder treats the first latent specially, and that of the video becomes ever older. Every block is decoded
    once more for it. None takes the video's first latent.   Raises ValueError for no frames.
    """

    frames: int = 3
    vae: StreamingVAE | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.frames < 1:
            raise ValueError(f"frames: expected at least 1, got {self.frames}; keep one frame of context or more")

    def open(self, model: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> RebuiltState:
        """The state of one request.   Raises ValueError for an autoencoder of other latents than the model's."""
        if self.vae is not None and self.vae.layout.channels != model.channels:
            raise ValueError(f"vae: expected latents of {model.channels} channels as the model's, got "
                             f"{self.vae.layout.channels}; use the autoencoder the model was trained with")  # fmt: skip
        return RebuiltState(model, text, noise, size, self)


@dataclass(frozen=True, slots=True)
class _DecodedContext:
    """blocks: that have been decoded.   place: in the autoencoder, behind them.   last: the latest frames, [B, 3, N, H, W]."""

    blocks: int = 0
    place: VAEState | None = None
    last: Tensor | None = None


class RebuiltState(WanState):
    """The state of a request that keeps its prompt, and the latest pixel frames where its context begins with one."""

    def __init__(self, model: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int], context: Rebuilt):
        super().__init__(model, text, noise, size)
        self.context, self._shown = context, _DecodedContext()

    @property
    def watermark(self) -> int:
        return self._shown.blocks

    @torch.no_grad()
    def generate(self, video: CommittedBlocks) -> Tensor:
        cache = ChunkCache()
        if video:
            latents = self.window(video)
            self._keep(latents, self.model.plan.cut(latents.shape[2]), len(video), cache)
        return self._generate(len(video), cache)

    def absorb(self, video: CommittedBlocks) -> None:
        """Decodes what has not been, where pixels are needed."""
        if self.context.vae is not None:
            self._show(video, self.context.vae)

    def snapshot(self) -> _DecodedContext:
        return self._shown

    def restore(self, snapshot: _DecodedContext) -> None:
        self._shown = snapshot

    def window(self, video: CommittedBlocks) -> Tensor:
        """The context of the block that follows the video, [B, C, F, H, W]."""
        most, device, vae = self.context.frames, self.model.device, self.context.vae
        if sum(block.shape[2] for block in video) <= most:
            return torch.cat([block.to(device) for block in video], 2)
        first = video[0][:, :, :1] if vae is None else self._oldest(video, vae)
        late, held = [], 0
        for block in reversed(video):
            late, held = [block.to(device), *late], held + block.shape[2]
            if held >= most - 1:
                break
        return torch.cat((first.to(device, late[0].dtype), torch.cat(late, 2)[:, :, held - (most - 1) :]), 2)

    def _oldest(self, video: CommittedBlocks, vae: StreamingVAE) -> Tensor:
        """The latent of the oldest pixel frame that the context shows: the one before those of its last latents."""
        self._show(video, vae)
        return vae.encode(self._shown.last[:, :, :1])[0]

    def _show(self, video: CommittedBlocks, vae: StreamingVAE) -> None:
        self._check_read(video)
        most = 1 + (self.context.frames - 1) * vae.layout.frames
        for block in video[self.watermark :]:
            frames, place = vae.decode(block, self._shown.place)
            last = frames if self._shown.last is None else torch.cat((self._shown.last, frames), 2)
            self._shown = _DecodedContext(self._shown.blocks + 1, place, last[:, :, -most:].clone())

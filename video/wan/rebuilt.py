"""Context that is read anew for every block, at positions from 0: a few latents instead of a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from mmspec.io.validation import Range, check_fields
from mmspec.video.chunk_cache import ChunkCache
from mmspec.video.generation import BlockNoise
from mmspec.video.model import CommittedBlocks
from mmspec.video.vae import StreamingVAE, VAEState
from mmspec.video.wan.video import WanState

if TYPE_CHECKING:
    from mmspec.video.wan.video import WanVideo


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Krea Realtime's context: before every block, a clean pass over the first latent frame and the last frames.

    Positions stay in the trained range. No keys are stored between blocks, so accepted drafts need no catching up.

    Args:
        frames: The latent frames of the context, the first included.
        vae: The autoencoder that encodes the context's oldest pixel frame anew as the first latent, as Krea does once
            early frames have left the context. A causal autoencoder treats the first latent specially. Each block is
            decoded a second time for it. None uses the first latent of the video.

    Raises:
        ValueError: `frames` is below 1.
    """

    frames: Annotated[int, Range(1, hint="keep one frame of context or more")] = 3
    vae: StreamingVAE | None = None

    __post_init__ = check_fields

    def open(self, model: WanVideo, text: Tensor, noise: BlockNoise, size: tuple[int, int]) -> RebuiltState:
        if self.vae is not None and self.vae.layout.channels != model.channels:
            raise ValueError(
                f"vae: expected latents of {model.channels} channels as the model's, got "
                f"{self.vae.layout.channels}; use the autoencoder the model was trained with"
            )
        return RebuiltState(model, text, noise, size, self)


@dataclass(frozen=True, slots=True)
class _DecodedContext:
    """The number of decoded blocks, the autoencoder's state after them, and the latest frames [B, 3, N, H, W]."""

    blocks: int = 0
    place: VAEState | None = None
    last: Tensor | None = None


class RebuiltState(WanState):
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
        """Decode the remaining blocks, where pixels are needed."""
        if self.context.vae is not None:
            self._show(video, self.context.vae)

    def snapshot(self) -> _DecodedContext:
        return self._shown

    def restore(self, snapshot: _DecodedContext) -> None:
        self._shown = snapshot

    def window(self, video: CommittedBlocks) -> Tensor:
        """Return the context of the next block, [B, C, F, H, W]."""
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
        """Return the latent of the oldest pixel frame of the context, the frame before those of its last latents."""
        self._show(video, vae)
        return vae.encode(self._shown.last[:, :, :1])[0]

    def _show(self, video: CommittedBlocks, vae: StreamingVAE) -> None:
        self._check_read(video)
        most = 1 + (self.context.frames - 1) * vae.layout.frames
        for block in video[self.watermark :]:
            frames, place = vae.decode(block, self._shown.place)
            last = frames if self._shown.last is None else torch.cat((self._shown.last, frames), 2)
            self._shown = _DecodedContext(self._shown.blocks + 1, place, last[:, :, -most:].clone())

"""Chunk by chunk through a causal autoencoder: the protocol, and the state between chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.video.vae.layout import LatentLayout


@dataclass(frozen=True, slots=True)
class VAEState:
    """What a causal autoencoder remembers of the chunks before: a value, which the next chunk leaves as it is.

    entries: one a causal convolution, a tensor [B, ...] of the frames it still needs, or a mark of one that has none yet.
    To keep a state is to keep the object: nothing is copied. At 480x832 in float32 the decoder of Wan holds about 2.5 GB.
    """

    entries: tuple[Tensor | str | None, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the tensors."""
        return sum(entry.nbytes for entry in self.entries if isinstance(entry, Tensor))

    def rows(self, index: Sequence[int] | Tensor) -> VAEState:
        """The state of some videos of the batch, copied."""
        return VAEState(
            tuple(
                entry[torch.as_tensor(index, device=entry.device)] if isinstance(entry, Tensor) else entry
                for entry in self.entries
            )
        )


class StreamingVAE(Protocol):
    """A causal autoencoder. It keeps nothing of a request itself, so videos can interleave.

    layout: of the latents it gives and takes, which are normalised.   state: of the chunks before, None at the start of a
    video; the state that is returned belongs to the next call, the one that was given stays valid.
    """

    layout: LatentLayout

    def decode(self, latents: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        """latents: float [B, C, F, h, w].   Returns frames, float32 [B, 3, N, H, W] in -1..1, and the state behind them.

        The first latent frame of a video gives one frame, every other `layout.frames`.
        """
        ...

    def encode(self, frames: Tensor, state: VAEState | None = None) -> tuple[Tensor, VAEState]:
        """frames: float [B, 3, N, H, W] in -1..1.   Returns latents, float32 [B, C, F, h, w], and the state behind them."""
        ...

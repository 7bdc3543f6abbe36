"""Chunk by chunk through a causal autoencoder: the protocol, the state between chunks, one video's place in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    @classmethod
    def joined(cls, states: Sequence[VAEState]) -> VAEState:
        """The state of several batches as one.

        Raises ValueError where one of them is at the start of its video and another is not: the first two chunks leave marks.
        """
        parts = list(zip(*(state.entries for state in states), strict=True))
        if any(len({_kind(entry) for entry in entries}) > 1 for entries in parts):
            raise ValueError(
                "states: expected videos that all stand at the start or all beyond it, got both; step them apart"
            )
        return cls(tuple(torch.cat(one) if isinstance(one[0], Tensor) else one[0] for one in parts))


def _kind(entry: Tensor | str | None) -> object:
    return entry.shape[1:] if isinstance(entry, Tensor) else entry


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


Step = Callable[[Tensor, VAEState | None], tuple[Tensor, VAEState]]


class Stream:
    """A video's place in an autoencoder: `Stream(vae.decode)` or `Stream(vae.encode)`.

    A chunk that fails leaves the place as it was. `restore` undoes every chunk since `snapshot`, without a trace.
    """

    def __init__(self, step: Step, state: VAEState | None = None):
        self._step, self._state = step, state

    def push(self, chunk: Tensor) -> Tensor:
        """The next chunk's frames or latents."""
        out, self._state = self._step(chunk, self._state)
        return out

    def snapshot(self) -> VAEState | None:
        """The place, for `restore`; None at the start. Nothing is copied."""
        return self._state

    def restore(self, state: VAEState | None) -> None:
        """Goes back to a place, of this video or of another of the same autoencoder."""
        self._state = state

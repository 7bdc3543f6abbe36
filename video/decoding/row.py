"""One video in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from mmspec.video.decoding.stats import BlockRecord
from mmspec.video.model import BlockVideoState
from mmspec.video.vae.stream import VAEState


@dataclass(frozen=True, slots=True)
class Decoded:
    """frames: uint8 [N, 3, H, W] of a block.   after: the place in the autoencoder behind it; None for a start."""

    frames: Tensor
    after: VAEState | None


@dataclass(slots=True)
class FilmRow:
    """What is committed, and beside it, until the round ends, the candidates for the next block.

    state: the target's.   film: committed latents [1, C, F, h, w].   frames: their pixels, uint8 [N, 3, H, W] on the host.
    place: in the autoencoder, behind what is committed: a value, so a draft is decoded from it and cannot move it.
    slots: latents of the candidates by handle.   decoded: pixels of the candidates that have been decoded.
    anchor: scores of the frames of the block that began the prompt, where they are asked for.
    run: drafts that stand since the target's last block.   records: see `BlockRecord`.
    """

    state: BlockVideoState
    film: list[Tensor] = field(default_factory=list)
    frames: list[Tensor] = field(default_factory=list)
    place: VAEState | None = None
    slots: dict[int, Tensor] = field(default_factory=dict)
    decoded: dict[int, Decoded] = field(default_factory=dict)
    anchor: Tensor | None = None
    run: int = 0
    records: list[BlockRecord] = field(default_factory=list)
    record: BlockRecord = field(default_factory=BlockRecord)

    @property
    def made(self) -> int:
        """Blocks the target drew."""
        return sum(not record.kept for record in self.records)

    def put(self, latents: Tensor, drafted: bool) -> int:
        """Keeps a candidate for the next block until the round ends; returns its handle."""
        handle = 2 * len(self.film) + drafted
        self.slots[handle] = latents
        return handle

    def take(self, handle: int, kept: bool) -> None:
        """Commits a candidate and forgets the others."""
        self.record.kept = kept
        self.run = self.run + 1 if kept else 0
        self.film.append(self.slots[handle])
        if handle in self.decoded:
            self.frames.append(self.decoded[handle].frames)
            self.place = self.decoded[handle].after
        self.records.append(self.record)
        self.clear()

    def clear(self) -> None:
        """Forgets every candidate, without a trace."""
        self.slots, self.decoded, self.record = {}, {}, BlockRecord()

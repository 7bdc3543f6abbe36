"""How a video's latent frames fall into blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Blocks of `size` latent frames, the first of `first`, None for as many.

    apart: whether every block is a video of its own to the autoencoder, whose first latent frame stands for one frame, as in
    Helios; else the whole film is one.   Raises ValueError for blocks of no frame.
    """

    size: int = 3
    first: int | None = None
    apart: bool = False

    def __post_init__(self) -> None:
        if self.size < 1 or self.first is not None and self.first < 1:
            raise ValueError(
                f"plan: expected blocks of at least one frame, got {self.size} and {self.first}; use more frames"
            )

    def frames(self, block: int) -> int:
        """Latent frames of a block."""
        return self.size if block or self.first is None else self.first

    def start(self, block: int) -> int:
        """The first latent frame of a block."""
        return 0 if block == 0 else self.frames(0) + (block - 1) * self.size

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

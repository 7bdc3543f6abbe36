"""How a video's latent frames fall into blocks."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.arguments import check_fields


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Blocks of `size` latent frames, the first of `first`, None for as many; or the first few of as many as it lists.

    apart: whether every block is a video of its own to the autoencoder, whose first latent frame stands for one frame, as in
    Helios; else the whole film is one.   Raises ValueError for blocks of no frame.
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
        told = f"{heads}, then " if heads else ""
        return f"{told}{self.size} latent frames a block{', each a video of its own' if self.apart else ''}"

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

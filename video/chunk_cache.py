"""Keys and values of a video's frames: a pass stages those of its blocks, and a commit stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Positions = Literal["absolute", "window"]


@dataclass(frozen=True, slots=True)
class FrameKV:
    """The keys and values of a frame in every layer, [B, heads, T, dim] each; they are never overwritten."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class CommittedFrames:
    frames: int = 0  # committed, with dropped frames
    kept: tuple[FrameKV, ...] = ()  # still held


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """The keys and values that a block of a pass attends to: the visible earlier frames, oldest first, and the block."""

    first: int  # the block's first token in the pass
    last: int  # exclusive
    keys: Tensor  # [B, heads, S, dim]
    values: Tensor  # [B, heads, S, dim]
    sunk: int = 0  # first tokens that are sinks at outdated positions
    moved: int = 0  # frames by which these sinks have to move, for positions in the window


class ChunkCache:
    """The cache of one request with one block-causal model.

    A pass over consecutive blocks calls `begin`, then `write` in every layer. This stages the keys and values of the
    blocks behind the committed frames. The next pass drops staged frames unless `commit` was called. Keys are stored
    at their absolute position. Windows are those of Self-Forcing ("Self Forcing: Bridging the Train-Test Gap in
    Autoregressive Video Diffusion").

    Args:
        window: The number of visible frames, with those of the block; None for all. A block that does not fit drops the
            oldest frames behind the sinks.
        sinks: The number of first frames that are always visible.
        positions: "absolute", positions in the video, as published; or "window", positions among the visible frames,
            which stay in the trained range. Only the sinks differ, see `AttentionSpan`.

    Raises:
        ValueError: The window has no room beside the sinks, or `positions` is unknown.
    """

    def __init__(self, window: int | None = None, sinks: int = 0, positions: Positions = "absolute"):
        if sinks < 0 or window is not None and window <= sinks:
            raise ValueError(
                f"window: expected None or more frames than the {sinks} sinks, which are 0 or more, got "
                f"{window}; widen the window"
            )
        if positions not in get_args(Positions):
            known = ", ".join(get_args(Positions))
            raise ValueError(f"positions: expected one of {known}, got {positions!r}; use one of them")
        self.window, self.sinks, self.positions = window, sinks, positions
        self._held = CommittedFrames()
        self._sizes: tuple[int, ...] = ()
        self._staged: list[tuple[Tensor, Tensor]] = []

    @property
    def frames(self) -> int:
        """The number of committed frames, including dropped frames: the position of the next frame."""
        return self._held.frames

    @property
    def kept(self) -> int:
        """The number of committed frames that are still held."""
        return len(self._held.kept)

    @property
    def staged(self) -> int:
        """The number of frames of the last pass that are not committed."""
        return sum(self._sizes)

    def begin(self, sizes: Sequence[int]) -> None:
        """Start a pass over blocks of these numbers of frames, behind the committed frames; drop staged frames."""
        self.discard()
        if self.window is not None and max(sizes) > self.window - self.sinks:
            raise ValueError(
                f"window: expected room for a block of {max(sizes)} frames beside {self.sinks} sinks, got "
                f"{self.window} frames; widen the window"
            )
        self._sizes = tuple(sizes)

    def write(self, layer: int, key: Tensor, value: Tensor) -> list[AttentionSpan]:
        """Stage a layer's keys and values, [B, heads, S, dim] of the pass, layers in order, and return each block's
        span. Spans are concatenated for this layer alone. Stored frames never move, so snapshots are free."""
        if layer != len(self._staged) or not self._sizes:
            raise ValueError(f"layer: expected {len(self._staged)} of a started pass, got {layer}; begin a pass first")
        self._staged.append((key, value))
        tokens = key.shape[2] // self.staged
        spans, end = [], 0
        for size in self._sizes:
            first, end = end, end + size
            seen = self._seen(self.kept + end)
            pair = (torch.cat(self._parts(layer, seen, which, tokens), 2) for which in ("keys", "values"))
            moved = self.frames + end - len(seen) if self.positions == "window" else 0
            spans.append(AttentionSpan(first * tokens, end * tokens, *pair, self.sinks * tokens if moved else 0, moved))
        return spans

    def commit(self) -> None:
        """Commit the staged frames and drop frames that leave the window."""
        if not self._staged:
            raise ValueError("commit: expected a pass that was not discarded, got none; pass over the block first")
        tokens = self._staged[0][0].shape[2] // self.staged
        frames = (*self._held.kept, *(self._frame(number, tokens) for number in range(self.staged)))
        self._held = CommittedFrames(self.frames + self.staged, tuple(frames[i] for i in self._seen(len(frames))))
        self.discard()

    def skip(self, frames: int) -> None:
        """Continue at a later position without the frames before it; drop staged frames."""
        if frames < self.frames:
            raise ValueError(f"frames: expected a position from {self.frames} on, got {frames}; begin a new cache")
        self._held = CommittedFrames(frames, self._held.kept)
        self.discard()

    def discard(self) -> None:
        """Drop staged frames."""
        self._staged, self._sizes = [], ()

    def snapshot(self) -> CommittedFrames:
        """Return the committed frames for `restore`, without a copy, since committed frames are never overwritten."""
        return self._held

    def restore(self, held: CommittedFrames) -> None:
        """Return to a snapshot and drop staged frames."""
        self._held = held
        self.discard()

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values [B, heads, S, dim], as the last block of the pass sees them."""
        seen, held = self._seen(self.kept + self.staged), self._held.kept
        if self._staged:
            tokens = self._staged[number][0].shape[2] // self.staged
        else:
            tokens = held[0].keys[number].shape[2]
        return tuple(torch.cat(self._parts(number, seen, which, tokens), 2) for which in ("keys", "values"))

    def _seen(self, end: int) -> list[int]:
        over = 0 if self.window is None else max(0, end - self.window)
        return list(range(end)) if not over else [*range(self.sinks), *range(self.sinks + over, end)]

    def _parts(self, layer: int, seen: list[int], which: str, tokens: int) -> list[Tensor]:
        held = self._held.kept
        parts = [getattr(held[i], which)[layer] for i in seen if i < len(held)]
        new = [i - len(held) for i in seen if i >= len(held)]
        if new:
            written = self._staged[layer][which == "values"]
            if new == list(range(new[0], new[-1] + 1)):
                parts.append(written[:, :, new[0] * tokens : (new[-1] + 1) * tokens])
            else:
                parts += [written[:, :, i * tokens : (i + 1) * tokens] for i in new]
        return parts

    def _frame(self, number: int, tokens: int) -> FrameKV:
        cut = slice(number * tokens, (number + 1) * tokens)
        pairs = [(key[:, :, cut], value[:, :, cut]) for key, value in self._staged]
        if len(self._sizes) > 1:  # a view keeps the tensor of all blocks in memory
            pairs = [(key.clone(), value.clone()) for key, value in pairs]
        return FrameKV(*zip(*pairs, strict=True))

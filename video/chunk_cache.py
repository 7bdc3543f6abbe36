"""Keys and values of a video's frames: a pass stages those of its blocks, and only a commit keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Positions = Literal["absolute", "window"]


@dataclass(frozen=True, slots=True)
class FrameKV:
    """One frame's keys and values in every layer, [B, heads, T, dim] each; never written again."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class CommittedFrames:
    """The committed frames of a cache, shared and not copied. frames: in all.   kept: those still attended to."""

    frames: int = 0
    kept: tuple[FrameKV, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """The keys and values of one block of a pass. first, last: its tokens among those of the pass.   keys, values: [B, heads,
    S, dim], of the frames before it that are still seen, oldest first, and of its own.   sunk: how many of their first
    tokens are sinks that stand `moved` frames too far back, where positions are those in the window."""

    first: int
    last: int
    keys: Tensor
    values: Tensor
    sunk: int = 0
    moved: int = 0


class ChunkCache:
    """The cache of one request with one block-causal model.

    A pass over consecutive blocks (`begin`, then `write` in every layer) stages their keys and values, and sees them behind
    the committed ones. The next pass forgets them, and `commit` alone keeps them. Keys are stored at their absolute position.

    window: frames that are attended to, the block's own included; None for all. A block that does not fit drops the oldest
        frames behind the sinks, as in "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion".
    sinks: how many of the first frames are always attended to.
    positions: "absolute", in the video, as published; or "window", among the frames that are attended to, which never leaves
        the trained range. Only the sinks differ, and an `AttentionSpan` says how far they have to follow.
    """

    def __init__(self, window: int | None = None, sinks: int = 0, positions: Positions = "absolute"):
        if sinks < 0 or window is not None and window <= sinks:
            raise ValueError(f"window: expected None or more frames than the {sinks} sinks, which are 0 or more, got "
                             f"{window}; widen the window")  # fmt: skip
        if positions not in get_args(Positions):
            known = ", ".join(get_args(Positions))
            raise ValueError(f"positions: expected one of {known}, got {positions!r}; use one of them")
        self.window, self.sinks, self.positions = window, sinks, positions
        self._held = CommittedFrames()
        self._sizes: tuple[int, ...] = ()
        self._staged: list[tuple[Tensor, Tensor]] = []

    @property
    def frames(self) -> int:
        """Frames committed so far, those dropped since included: the position of the next one."""
        return self._held.frames

    @property
    def kept(self) -> int:
        """Committed frames that are still held."""
        return len(self._held.kept)

    @property
    def staged(self) -> int:
        """Frames of the last pass that are not committed."""
        return sum(self._sizes)

    def begin(self, sizes: Sequence[int]) -> None:
        """Starts a pass over blocks of so many frames each, which follow what is committed. What was staged is forgotten.

        Raises ValueError for a block that the window has no room for.
        """
        self.discard()
        if self.window is not None and max(sizes) > self.window - self.sinks:
            raise ValueError(f"window: expected room for a block of {max(sizes)} frames beside {self.sinks} sinks, got "
                             f"{self.window} frames; widen the window")  # fmt: skip
        self._sizes = tuple(sizes)

    def write(self, layer: int, key: Tensor, value: Tensor) -> list[AttentionSpan]:
        """Stages one layer's keys and values [B, heads, S, dim] of the pass. Returns what each of its blocks attends to,
        copied together for this layer: frames themselves are never moved, so that snapshots are free."""
        if layer != len(self._staged) or not self._sizes:
            raise ValueError(
                f"layer: expected {len(self._staged)} of a pass that was begun, got {layer}; begin a pass first"
            )
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
        """Keeps what is staged and drops what a block has pushed out.   Raises ValueError where no pass is staged."""
        if not self._staged:
            raise ValueError("commit: expected a pass that was not discarded, got none; pass over the block first")
        tokens = self._staged[0][0].shape[2] // self.staged
        frames = (*self._held.kept, *(self._frame(number, tokens) for number in range(self.staged)))
        self._held = CommittedFrames(self.frames + self.staged, tuple(frames[i] for i in self._seen(len(frames))))
        self.discard()

    def skip(self, frames: int) -> None:
        """Goes on at a later position, without the frames before it; forgets the staged frames.

        Raises ValueError for an earlier position."""
        if frames < self.frames:
            raise ValueError(f"frames: expected a position from {self.frames} on, got {frames}; begin a new cache")
        self._held = CommittedFrames(frames, self._held.kept)
        self.discard()

    def discard(self) -> None:
        """Forgets what is staged."""
        self._staged, self._sizes = [], ()

    def snapshot(self) -> CommittedFrames:
        """The committed frames, to come back to: no copy, since nothing committed is written again."""
        return self._held

    def restore(self, held: CommittedFrames) -> None:
        """Back to a snapshot; what is staged is forgotten."""
        self._held = held
        self.discard()

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values [B, heads, S, dim], committed and staged, as the last block of the pass saw them."""
        seen, kept = self._seen(self.kept + self.staged), self._held.kept
        if self._staged:
            tokens = self._staged[number][0].shape[2] // self.staged
        else:
            tokens = kept[0].keys[number].shape[2]
        return tuple(torch.cat(self._parts(number, seen, which, tokens), 2) for which in ("keys", "values"))

    def _seen(self, end: int) -> list[int]:
        """Which of the held and staged frames, counted from the oldest, a block sees that ends before frame `end` of them."""
        over = 0 if self.window is None else max(0, end - self.window)
        return list(range(end)) if not over else [*range(self.sinks), *range(self.sinks + over, end)]

    def _parts(self, layer: int, seen: list[int], which: str, tokens: int) -> list[Tensor]:
        kept = self._held.kept
        parts = [getattr(kept[i], which)[layer] for i in seen if i < len(kept)]
        new = [i - len(kept) for i in seen if i >= len(kept)]
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
        if len(self._sizes) > 1:  # a view holds the whole tensor in memory: little for one block, and much for many
            pairs = [(key.clone(), value.clone()) for key, value in pairs]
        return FrameKV(*zip(*pairs, strict=True))

"""Keys and values in slots: preallocated, with a committed length per row."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.slots import move_slots
from mmspec.kernels.tree_mask import tree_bias


class SlotPool:
    """Keys and values of all layers in one pool, [layers, rows, heads, slots, dim], with a committed length per row.

    A pass writes its N new slots behind each row's own length; `commit` keeps those on the accepted path and forgets the
    rest by not counting them. Left padding stays in its slots, marked in `hidden` bool [rows, P]. Where values come in
    another order than that of their slots, `place` names the slots of a pass, and the caller keeps count of them.

    layers: number of attention layers, all of one shape.
    capacity: slots to allocate at first; the pool doubles when a pass needs more.
    copies: cache rows per request row (2 for a guided pair), laid out [copies, B].
    start: int64 [rows], the position behind every row's prompt, where a model's positions count from it; set by prefill.
    width: slots in use by the longest row.   uniform: whether every row has that many. Both are host numbers.
    Raises ValueError when layers differ in shape.
    """

    def __init__(self, layers: int, capacity: int, *, copies: int = 1):
        self.depth, self.capacity, self.copies = layers, capacity, copies
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.length: Tensor | None = None
        self.hidden: Tensor | None = None
        self.start: Tensor | None = None
        self.width, self.uniform = 0, True
        self.slot: Tensor | None = None
        self.extent = 0
        self._lengths: list[int] = []

    @property
    def lengths(self) -> list[int]:
        """Committed slots per row, on the host; setting them takes the cache back to that state."""
        return self._lengths

    @lengths.setter
    def lengths(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self.width = max(lengths, default=0)
        self.uniform = min(lengths, default=0) == self.width

    def reserve(self, key: Tensor, value: Tensor) -> None:
        """Makes room for the slots of one pass. key, value: [rows, heads, N, dim]."""
        rows, heads, count, _ = key.shape
        if self.keys is None:
            self.capacity = max(self.capacity, count)
            size = (self.depth, rows, heads, self.capacity)
            self.keys = key.new_zeros(*size, key.shape[-1])
            self.values = value.new_zeros(*size, value.shape[-1])
            self.length = torch.zeros(rows, dtype=torch.long, device=key.device)
            self.lengths = [0] * rows
        self._make_room(self.width + count)

    def _make_room(self, slots: int) -> None:
        if slots > self.capacity:
            grown = max(2 * self.capacity, slots)
            self.keys, self.values = (_grow(pool, grown) for pool in (self.keys, self.values))
            self.capacity = grown

    def place(self, slot: Tensor | None, extent: int = 0) -> None:
        """Names the slots the coming passes write, int64 [rows, N], each once a row; a pass reads slots 0..extent - 1.

        What was in them is overwritten. None: behind each row's length again.
        Raises ValueError before the first pass, which sets the shapes.
        """
        if self.keys is None:
            raise ValueError("slot: expected a cache that has seen a pass, got an empty one; run the prompt first")
        self._make_room(extent)
        self.slot, self.extent = slot, extent

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores one layer's new slots and returns all slots in use, [rows, heads, width + N, dim] each (`extent` slots
        where they are named)."""
        if layer == 0:
            self.reserve(key, value)
        keys, values = self.keys[layer], self.values[layer]
        if key.shape[1::2] != keys.shape[1::2]:
            raise ValueError(f"layer {layer}: expected keys of heads x dim {tuple(keys.shape[1::2])} as in layer 0, got "
                             f"{tuple(key.shape[1::2])}; models whose layers differ in shape are not supported")  # fmt: skip
        slot, width, end = self.slot, self.width, self.width + key.shape[2]
        if slot is None and self.uniform:
            keys[:, :, width:end] = key
            values[:, :, width:end] = value
        else:
            if slot is None:
                slot = self.length[:, None] + torch.arange(key.shape[2], device=key.device)
            else:
                end = self.extent
            row = torch.arange(key.shape[0], device=key.device)[:, None]
            keys.transpose(1, 2)[row, slot] = key.transpose(1, 2)
            values.transpose(1, 2)[row, slot] = value.transpose(1, 2)
        return keys[:, :, :end], values[:, :, :end]

    def advance(self, counts: int | list[int]) -> None:
        """Counts the first slots of the last pass as committed: `counts` of them, per row when a list."""
        if isinstance(counts, int):
            self.lengths = [n + counts for n in self.lengths]
            self.length = self.length + counts
            return
        counts = counts * self.copies
        self.lengths = [n + c for n, c in zip(self.lengths, counts, strict=True)]
        self.length = self.length + torch.tensor(counts, device=self.length.device)

    def commit(self, path: list[list[int]]) -> None:
        """Keeps the slots of `path[b]`, ascending node indices of row b's last pass, and advances past them."""
        if any(nodes != list(range(len(nodes))) for nodes in path):
            self._move(path)
        self.advance([len(nodes) for nodes in path])

    def _move(self, path: list[list[int]]) -> None:
        longest = max(map(len, path))
        source = torch.tensor([p + list(range(len(p), longest)) for p in path] * self.copies, device=self.length.device)
        move_slots(self.keys, self.values, self.length, source)

    def bias(self, ancestor: Tensor, dtype: torch.dtype, back: int = 0) -> Tensor:
        """The attention bias of a pass over a drafted tree, [rows or 1, 1, N, width + N] (see `tree_bias`).

        ancestor: bool [R, N, back + N]; the last `back` slots counted so far belong to the tree already.
        """
        if self.copies > 1 and ancestor.shape[0] > 1:
            ancestor = ancestor.repeat(self.copies, 1, 1)
        return tree_bias(ancestor, self.length - back, self.width - back, self.uniform, self.hidden, dtype)


def _grow(pool: Tensor, slots: int) -> Tensor:
    larger = pool.new_zeros(*pool.shape[:3], slots, pool.shape[4])
    larger[:, :, :, : pool.shape[3]] = pool
    return larger

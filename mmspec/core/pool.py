"""A pool of keys and values in slots: preallocated, with a committed length per row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from mmspec.kernels.draft_tree import move_slots, tree_bias


class KeyValueSlots:
    """Keys and values of several layers, [layers, rows, heads, slots, dim] each; `keys` and `values` may differ in dim.

    layers: how many there is room for.   capacity: slots allocated.
    """

    def __init__(self, layers: int, key: Tensor, value: Tensor, capacity: int):
        rows, heads = key.shape[:2]
        self.capacity, self.taken = capacity, 0
        self.keys = key.new_zeros(layers, rows, heads, capacity, key.shape[-1])
        self.values = value.new_zeros(layers, rows, heads, capacity, value.shape[-1])

    @property
    def device(self) -> torch.device:
        return self.keys.device

    @property
    def full(self) -> bool:
        """Whether every layer there is room for has come."""
        return self.taken == self.keys.shape[0]

    def fits(self, key: Tensor, value: Tensor) -> bool:
        """Whether a layer with such keys and values [rows, heads, N, dim] can be one of these."""
        return all(
            new.shape[:2] == pool.shape[1:3]
            and new.shape[-1] == pool.shape[-1]
            and new.device == pool.device
            and new.dtype == pool.dtype
            for new, pool in ((key, self.keys), (value, self.values))
        )

    def grow(self, capacity: int) -> None:
        if capacity > self.capacity:
            self.keys, self.values = (_grown(pool, capacity) for pool in (self.keys, self.values))
            self.capacity = capacity

    def move(self, length: Tensor, source: Tensor) -> None:
        """Puts the slots `length + source[:, i]` at `length + i` in every layer. length: int64 [rows]; source: [rows, n]."""
        move_slots(self.keys, self.values, length.to(self.device), source.to(self.device))


def _grown(pool: Tensor, slots: int) -> Tensor:
    larger = pool.new_zeros(*pool.shape[:3], slots, pool.shape[4])
    larger[:, :, :, : pool.shape[3]] = pool
    return larger


class SlotPool:
    """Keys and values of all layers, [layers, rows, heads, slots, dim] for those of one shape on one device, with a
    committed length per row.

    A pass writes its N new slots behind each row's own length; `commit` keeps those on the accepted path and forgets the
    rest by not counting them. Left padding stays in its slots, marked in `hidden` bool [rows, P]. Where values come in
    another order than that of their slots, `place` names the slots of a pass, and the caller keeps count of them.

    layers: number of layers, or one name for each: layers of one name are expected in one shape, which only decides how
        much is allocated together.
    capacity: slots to allocate at first; the pool doubles when a pass needs more.
    copies: cache rows per request row (2 for a guided pair), laid out [copies, B].
    device: of lengths and masks; None for that of the layer which is written first.
    start: int64 [rows], the position behind every row's prompt, where a model's positions count from it; set by prefill.
    width: slots in use by the longest row.   uniform: whether every row has that many. Both are host numbers.
    bounded: the host knows an upper bound of the lengths only, see `bound`.
    Raises ValueError when a layer changes its shape.
    """

    def __init__(
        self,
        layers: int | Sequence[Hashable],
        capacity: int,
        *,
        copies: int = 1,
        device: torch.device | None = None,
    ):
        self.names = [None] * layers if isinstance(layers, int) else list(layers)
        self.depth, self.capacity, self.copies = len(self.names), capacity, copies
        self.device = device
        self.groups: list[KeyValueSlots] = []
        self._home: dict[int, tuple[KeyValueSlots, int]] = {}
        self.length: Tensor | None = None
        self.hidden: Tensor | None = None
        self.start: Tensor | None = None
        self.width, self.uniform = 0, True
        self.slot: Tensor | None = None
        self.extent, self.bounded = 0, False
        self._lengths: list[int] = []

    @property
    def lengths(self) -> list[int]:
        """Committed slots per row, on the host; setting them takes the cache back to that state."""
        return self._lengths

    @lengths.setter
    def lengths(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self.width = max(lengths, default=0)
        self.uniform = not self.bounded and min(lengths, default=0) == self.width

    @property
    def keys(self) -> Tensor | None:
        """Keys of all layers where they are of one shape, [layers, rows, heads, slots, dim]; None before the first pass."""
        return self._only.keys if self.groups else None

    @property
    def values(self) -> Tensor | None:
        """As `keys`."""
        return self._only.values if self.groups else None

    @property
    def _only(self) -> KeyValueSlots:
        if len(self.groups) > 1:
            raise ValueError(
                f"cache: expected layers of one shape, got {len(self.groups)} shapes; ask `at` for a layer's own"
            )
        return self.groups[0]

    def at(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values, [rows, heads, slots, dim] each."""
        slots, place = self._home[layer]
        return slots.keys[place], slots.values[place]

    def reserve(self, key: Tensor, value: Tensor) -> None:
        """Makes room for the slots of one pass. key, value: [rows, heads, N, dim]."""
        if self.length is None:
            self.capacity = max(self.capacity, key.shape[2])
            self.length = torch.zeros(key.shape[0], dtype=torch.long, device=self.device or key.device)
            self.lengths = [0] * key.shape[0]
        self._make_room(self.width + key.shape[2])

    def _make_room(self, slots: int) -> None:
        if slots > self.capacity:
            if self.bounded:  # its addresses are written into a graph
                raise ValueError(
                    f"cache: expected at most {self.capacity} slots in use, got {slots}; make a larger one"
                )
            self.capacity = max(2 * self.capacity, slots)
            for group in self.groups:
                group.grow(self.capacity)

    def _settle(self, layer: int, key: Tensor, value: Tensor) -> tuple[KeyValueSlots, int]:
        """Finds a layer its place, in a pool of its shape that it shares with the layers of its name."""
        name = self.names[layer]
        group = next((one for one in self.groups if not one.full and one.fits(key, value)), None)
        if group is None:
            coming = sum(other == name and n not in self._home for n, other in enumerate(self.names))
            group = KeyValueSlots(coming, key, value, self.capacity)
            self.groups.append(group)
        home = self._home[layer] = group, group.taken
        group.taken += 1
        return home

    def place(self, slot: Tensor | None, extent: int = 0) -> None:
        """Names the slots the coming passes write, int64 [rows, N], each once a row; a pass reads slots 0..extent - 1.

        What was in them is overwritten. None: behind each row's length again.
        Raises ValueError before the first pass, which sets the shapes.
        """
        if self.length is None:
            raise ValueError("slot: expected a cache that has seen a pass, got an empty one; run the prompt first")
        self._make_room(extent)
        self.slot, self.extent = slot, extent

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores one layer's new slots and returns all slots in use, [rows, heads, width + N, dim] each (`extent` slots
        where they are named)."""
        self.reserve(key, value)
        slots, place = self._home.get(layer) or self._settle(layer, key, value)
        if not slots.fits(key, value):
            raise ValueError(f"layer {layer}: expected keys and values as in its first pass, {tuple(slots.keys.shape[1:3])}"
                             f" rows and heads, got {tuple(key.shape)}; start a new cache")  # fmt: skip
        keys, values = slots.keys[place], slots.values[place]
        slot, width, end = self.slot, self.width, self.width + key.shape[2]
        if slot is None and self.uniform:
            keys[:, :, width:end] = key
            values[:, :, width:end] = value
        else:
            if slot is None:
                slot = self.length[:, None] + torch.arange(key.shape[2], device=self.length.device)
            else:
                end = self.extent
            slot, row = slot.to(key.device), torch.arange(key.shape[0], device=key.device)[:, None]
            keys.transpose(1, 2)[row, slot] = key.transpose(1, 2)
            values.transpose(1, 2)[row, slot] = value.transpose(1, 2)
        return keys[:, :, :end], values[:, :, :end]

    def allocate_like(self, other: SlotPool, rows: int) -> None:
        """Makes room for the layers that `other` holds, for so many cache rows; nothing is committed."""
        self.length = torch.zeros(rows, dtype=torch.long, device=other.length.device)
        self.lengths = [0] * rows
        for layer in other._home:
            self._settle(layer, *(kept[:1, :, :0].expand(rows, -1, -1, -1) for kept in other.at(layer)))

    def take_over(self, other: SlotPool) -> None:
        """Copies into the first rows what `other` has committed, in place; nothing is left of what was here."""
        slots = min(self.capacity, other.capacity)
        for layer in other._home:
            for own, kept in zip(self.at(layer), other.at(layer), strict=True):
                own.zero_()[: kept.shape[0], :, :slots] = kept[:, :, :slots]
        self.length.zero_()[: len(other.length)] = other.length

    def bound(self, most: int) -> None:
        """From now on only the device knows how many slots are committed; the host takes `most` for every row, so that passes
        read as many slots whatever the lengths are. The caller sees to it that no length exceeds `most`."""
        self.bounded = True
        self.lengths = [most] * len(self.lengths)

    def advance(self, counts: int | list[int] | Tensor) -> None:
        """Counts the first slots of the last pass as committed: `counts` of them, per row when a list or int64 [B].

        A tensor moves the lengths on the device alone, see `bound`.
        """
        if isinstance(counts, Tensor):
            self.length = self.length + counts.repeat(self.copies)
            return
        if isinstance(counts, int):
            self.lengths = [n + counts for n in self.lengths]
            self.length = self.length + counts
            return
        counts = counts * self.copies
        self.lengths = [n + c for n, c in zip(self.lengths, counts, strict=True)]
        self.length = self.length + torch.tensor(counts, device=self.length.device)

    def cut(self, lengths: list[int]) -> None:
        """Counts only the first `lengths[r]` slots of cache row r as committed."""
        self.lengths = list(lengths)
        self.length = torch.tensor(self.lengths, device=self.length.device)

    def commit(self, path: list[list[int]]) -> None:
        """Keeps the slots of `path[b]`, ascending node indices of row b's last pass, and advances past them."""
        if any(nodes != list(range(len(nodes))) for nodes in path):
            self._move(path)
        self.advance([len(nodes) for nodes in path])

    def commit_counted(self, path: Tensor, counts: Tensor, moves: bool) -> None:
        """`commit` with nothing asked of the device: the first `counts[b]` nodes of `path[b]`, int64 [B] and [B, D + 1].

        moves: whether a path can leave out nodes of the pass, as those of chains cannot.
        """
        if moves:
            place = torch.arange(path.shape[1], device=path.device)
            self._shift(torch.where(place < counts[:, None], path, place).repeat(self.copies, 1))
        self.advance(counts)

    def _move(self, path: list[list[int]]) -> None:
        longest = max(map(len, path))
        source = [p + list(range(len(p), longest)) for p in path] * self.copies
        self._shift(torch.tensor(source, device=self.length.device))

    def _shift(self, source: Tensor) -> None:
        for group in self.groups:
            group.move(self.length, source)

    def bias(self, ancestor: Tensor, dtype: torch.dtype, back: int = 0) -> Tensor:
        """The attention bias of a pass over a drafted tree, [rows or 1, 1, N, width + N] (see `tree_bias`).

        ancestor: bool [R, N, back + N]; the last `back` slots counted so far belong to the tree already.
        """
        if self.copies > 1 and ancestor.shape[0] > 1:
            ancestor = ancestor.repeat(self.copies, 1, 1)
        return tree_bias(ancestor, self.length - back, self.width - back, self.uniform, self.hidden, dtype)

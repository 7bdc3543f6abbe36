from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from mmspec.kernels.draft_tree import move_slots, tree_bias


class KeyValueSlots:
    """Keys and values of several layers, [layers, rows, heads, slots, dim] each, shaped like those of a pass; dims may
    differ."""

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
        return self.taken == self.keys.shape[0]

    def fits(self, key: Tensor, value: Tensor) -> bool:
        return all(
            new.shape[:2] == pool.shape[1:3]
            and new.shape[-1] == pool.shape[-1]
            and new.device == pool.device
            and new.dtype == pool.dtype
            for new, pool in ((key, self.keys), (value, self.values))
        )

    def grow(self, capacity: int) -> None:
        if capacity > self.capacity:
            self.keys = _grown(self.keys, capacity)  # one after the other, so that only half is there twice
            self.values = _grown(self.values, capacity)
            self.capacity = capacity

    def move(self, length: Tensor, source: Tensor) -> None:
        """Copy the slots `length + source[:, i]` to `length + i` in every layer; int64 [rows] and [rows, n]."""
        move_slots(self.keys, self.values, length.to(self.device), source.to(self.device))


def _grown(pool: Tensor, slots: int) -> Tensor:
    larger = pool.new_zeros(*pool.shape[:3], slots, pool.shape[4])
    larger[:, :, :, : pool.shape[3]] = pool
    return larger


class SlotPool:
    """The keys and values of all layers, with a committed length per row.

    A pass writes its N new slots after each row's length. `commit` keeps the slots of the accepted path; the others no
    longer count. Left padding stays in its slots, marked in `hidden` bool [rows, P]. Where values arrive out of order,
    `place` names the slots of a pass, and the caller counts them.

    Args:
        layers: The number of layers, or a name for each. Layers of one name share an allocation.
        capacity: The slots to allocate at first; the pool doubles when a pass needs more.
        copies: Cache rows per request row (2 for a guided pair), laid out [copies, B].
        device: The device of lengths and masks, None for that of the first layer written.

    Attributes:
        start: int64 [rows], the position after every row's prompt, for models that count from it; set by prefill.
        width: The slots in use by the longest row, on the host.
        uniform: Whether every row has `width` slots, on the host.
        bounded: The host knows only an upper bound of the lengths, see `bound`.
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
        """Committed slots per row, on the host; setting them returns the cache to that state."""
        return self._lengths

    @lengths.setter
    def lengths(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self.width = max(lengths, default=0)
        self.uniform = not self.bounded and min(lengths, default=0) == self.width

    @property
    def keys(self) -> Tensor | None:
        """Keys of all layers if they share a shape, [layers, rows, heads, slots, dim]; None before the first pass."""
        return self._only.keys if self.groups else None

    @property
    def values(self) -> Tensor | None:
        """The values, as `keys`."""
        return self._only.values if self.groups else None

    @property
    def _only(self) -> KeyValueSlots:
        if len(self.groups) > 1:
            raise ValueError(
                f"cache: expected layers of one shape, got {len(self.groups)} shapes; read a layer with `at`"
            )
        return self.groups[0]

    def at(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, [rows, heads, slots, dim] each."""
        slots, place = self._home[layer]
        return slots.keys[place], slots.values[place]

    def reserve(self, key: Tensor, value: Tensor) -> None:
        """Make room for the slots of a pass with keys and values [rows, heads, N, dim]."""
        if self.length is None:
            self.capacity = max(self.capacity, key.shape[2])
            self.length = torch.zeros(key.shape[0], dtype=torch.long, device=self.device or key.device)
            self.lengths = [0] * key.shape[0]
        self._make_room(self.width + key.shape[2])

    def _make_room(self, slots: int) -> None:
        if slots > self.capacity:
            if self.bounded:  # a graph holds its addresses
                raise ValueError(
                    f"cache: expected at most {self.capacity} slots in use, got {slots}; allocate a larger cache"
                )
            self.capacity = max(2 * self.capacity, slots)
            for group in self.groups:
                group.grow(self.capacity)

    def _settle(self, layer: int, key: Tensor, value: Tensor) -> tuple[KeyValueSlots, int]:
        name = self.names[layer]
        group = next((group for group in self.groups if not group.full and group.fits(key, value)), None)
        if group is None:
            coming = sum(other == name and n not in self._home for n, other in enumerate(self.names))
            group = KeyValueSlots(coming, key, value, self.capacity)
            self.groups.append(group)
        home = self._home[layer] = group, group.taken
        group.taken += 1
        return home

    def place(self, slot: Tensor | None, extent: int = 0) -> None:
        """Let the coming passes overwrite the slots int64 [rows, N], distinct in each row, and read 0..extent - 1; None
        ends that."""
        if self.length is None:
            raise ValueError("slot: expected a cache with a prompt, got an empty cache; run the prompt first")
        self._make_room(extent)
        self.slot, self.extent = slot, extent

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store a layer's new slots and return all slots in use, [rows, heads, width + N or extent, dim] each."""
        self.reserve(key, value)
        slots, place = self._home.get(layer) or self._settle(layer, key, value)
        if not slots.fits(key, value):
            raise ValueError(
                f"layer {layer}: expected keys and values as in its first pass, {tuple(slots.keys.shape[1:3])}"
                f" rows and heads, got {tuple(key.shape)}; start a new cache"
            )
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
        """Make room for the layers that `other` holds; nothing is committed."""
        self.length = torch.zeros(rows, dtype=torch.long, device=other.length.device)
        self.lengths = [0] * rows
        for layer in other._home:
            self._settle(layer, *(stored[:1, :, :0].expand(rows, -1, -1, -1) for stored in other.at(layer)))

    def take_over(self, other: SlotPool) -> None:
        """Copy the committed slots of `other` into the first rows, in place; earlier content is discarded."""
        slots = min(self.capacity, other.capacity)
        for layer in other._home:
            for own, stored in zip(self.at(layer), other.at(layer), strict=True):
                own.zero_()[: stored.shape[0], :, :slots] = stored[:, :, :slots]
        self.length.zero_()[: len(other.length)] = other.length

    def bound(self, most: int) -> None:
        """Count committed slots, at most `most`, on the device alone from now on: every pass reads as many slots."""
        self.bounded = True
        self.lengths = [most] * len(self.lengths)

    def advance(self, counts: int | list[int] | Tensor) -> None:
        """Commit the first slots of the last pass: `counts` of them in every row, per row for a list or a tensor int64
        [B]. A tensor moves the lengths on the device alone, see `bound`."""
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
        """Count only the first `lengths[r]` slots of cache row r as committed."""
        self.lengths = list(lengths)
        self.length = torch.tensor(self.lengths, device=self.length.device)

    def commit(self, path: list[list[int]]) -> None:
        """Commit the slots of `path[b]`, ascending node indices of row b's last pass."""
        if any(nodes != list(range(len(nodes))) for nodes in path):
            self._move(path)
        self.advance([len(nodes) for nodes in path])

    def commit_counted(self, path: Tensor, counts: Tensor, moves: bool) -> None:
        """Commit `counts[b]` nodes of `path` [B, D + 1] without host reads; only trees, with `moves`, skip nodes of the
        pass."""
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
        """Return a bias [rows or 1, 1, N, width + N] for `ancestor` bool [R, N, back + N], see `tree_bias`."""
        if self.copies > 1 and ancestor.shape[0] > 1:
            ancestor = ancestor.repeat(self.copies, 1, 1)
        return tree_bias(ancestor, self.length - back, self.width - back, self.uniform, self.hidden, dtype)

"""A slot cache for transformers models. A pass never changes committed state; `commit` is the only mutation; the next
pass discards an uncommitted pass; stopped rows stay untouched."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from mmspec.core.layers.compat import NUMBERED_STATES, DummyLayer, stored_by_number
from mmspec.core.layers.layer_plan import LayerPlan, LayerSpec
from mmspec.core.layers.tree_recurrence import CommittedPaths
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import Tree


class SlotLayer(CacheLayerMixin):
    """A layer's view of a SlotCache, with every slot even where its mask hides some. The reference is weak, since a
    cycle would keep every request's keys and values until garbage collection."""

    is_croppable = True
    is_sliding = False

    def __init__(self, cache: SlotCache, index: int):
        self._cache, self.index, self.is_initialized = ref(cache), index, False

    @property
    def cache(self) -> SlotCache:
        return self._cache()

    @property
    def keys(self) -> Tensor | None:
        """[rows, heads, slots, dim], including slots past each row's length; None before the first pass."""
        return self.cache.at(self.index)[0] if self.is_initialized else None

    @property
    def values(self) -> Tensor | None:
        return self.cache.at(self.index)[1] if self.is_initialized else None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.cache.reserve(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        stored = self.cache.write(self.index, key_states, value_states)
        self.is_initialized = True
        return stored

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.width + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.width

    def get_max_length(self) -> int:
        return -1


class EmptyLayer(DummyLayer):
    """A layer that stores nothing: it has no attention, or it reads the keys and values that another layer stored."""


class CrossLayer(CacheLayerMixin):
    """Keys and values of the prompt's images for cross-attention: the prompt's pass writes them, later passes only read."""

    is_croppable = True
    is_sliding = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        return None

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return (0 if self.keys is None else self.keys.shape[2]), 0

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def get_max_length(self) -> int:
        return -1


@dataclass(slots=True)
class LayerStates:
    """The states of a layer, by the number of the mixer; None where a mixer has no such state."""

    conv: dict[int, Tensor | None] = field(default_factory=dict)  # [rows, C, K], the last K inputs of a convolution
    recurrent: dict[int, Tensor | None] = field(default_factory=dict)  # [rows, ...] each

    def rows(self, index: Tensor) -> LayerStates:
        """Return copies of the rows `index`, int64 [n]."""
        return LayerStates(
            *({n: None if x is None else x[index] for n, x in kind.items()} for kind in (self.conv, self.recurrent))
        )

    @classmethod
    def joined(cls, several: list[LayerStates]) -> LayerStates:
        return cls(
            *(
                {n: x if x is None else torch.cat([states[n] for states in kind]) for n, x in kind[0].items()}
                for kind in ([states.conv for states in several], [states.recurrent for states in several])
            )
        )

    def put(self, index: Tensor, other: LayerStates) -> LayerStates:
        """Return these states with `other` in the rows `index`, int64 [n]."""
        return LayerStates(
            *(
                {n: x if x is None else x.index_copy(0, index, new[n].to(x)) for n, x in old.items()}
                for old, new in ((self.conv, other.conv), (self.recurrent, other.recurrent))
            )
        )


class StateUpdate(Protocol):
    def behind(self, states: LayerStates, paths: CommittedPaths) -> LayerStates:
        """Return the `states` from before the pass, with this mixer's own moved past each row's accepted path."""


class StateLayer(LinearAttentionCacheLayerMixin):
    """A layer with recurrent states. Passes after the prompt run in `serving`, and `commit` applies their updates,
    `pending`. Inside `serving`, `full` holds each convolution's window and inputs, [rows, C, K + N]."""

    is_compileable = False
    is_croppable = False

    def __init__(self, number_of_states: int = 1):
        LinearAttentionCacheLayerMixin.__init__(self, *([number_of_states] if NUMBERED_STATES else []))
        self.number_of_states = number_of_states
        self.committed = LayerStates()
        self.pending: list[StateUpdate] | None = None
        self.made: LayerStates | None = None
        self.full: dict[int, Tensor] = {}

    def lazy_initialization(self, *args, **kwargs) -> None:
        return None

    def open(self) -> None:
        self.pending = []

    @contextmanager
    def serving(self, before: LayerStates, shown: LayerStates) -> Iterator[LayerStates]:
        """Let a mixer called inside read the states `shown` and update a copy of the states `before`; yield the copy."""
        self.made, self.full = LayerStates(dict(before.conv), dict(before.recurrent)), {}
        numbers = range(self.number_of_states)
        self.conv_states = stored_by_number({n: shown.conv.get(n) for n in numbers})
        self.recurrent_states = stored_by_number({n: shown.recurrent.get(n) for n in numbers})
        # without earlier states, every version of a class treats a single node like several
        self.has_previous_state = stored_by_number({n: n in shown.conv or n in shown.recurrent for n in numbers})
        try:
            yield self.made
        finally:
            self.made = None
            self.has_previous_state = stored_by_number(dict.fromkeys(numbers, True))  # models choose a mask by it

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs
    ) -> Tensor:
        """Return the inputs [rows, C, N] after the earlier inputs, [rows, C, K + N]."""
        if self.made is None:
            self._check_prompt()
            size = conv_kernel_size or conv_states.shape[-1]
            full = torch.nn.functional.pad(conv_states, (max(size - conv_states.shape[-1], 0), 0))
            self.committed.conv[state_idx] = full[..., -size:].clone()
            return full
        held = self.made.conv[state_idx]
        full = torch.cat([held, conv_states.to(held.dtype)], -1)
        self.full[state_idx] = full
        self.made.conv[state_idx] = full[..., -held.shape[-1] :]
        return full if NUMBERED_STATES else self.made.conv[state_idx]

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs) -> Tensor:
        if self.made is None:
            self._check_prompt()
            self.committed.recurrent[state_idx] = recurrent_states.clone()
        else:
            self.made.recurrent[state_idx] = recurrent_states
        return recurrent_states

    def _check_prompt(self) -> None:
        if self.pending is not None:
            raise ValueError(
                "model: expected mixers of a known class, got a mixer that writes its own state; decode it "
                "with model.generate"
            )

    def commit(self, paths: CommittedPaths) -> None:
        for part in self.pending or ():
            self.committed = part.behind(self.committed, paths)
        if self.pending:
            self.pending = []


class MixedLayer(StateLayer, SlotLayer):
    """A layer with attention over slots and with states."""

    def __init__(self, cache: SlotCache, index: int, number_of_states: int = 1):
        SlotLayer.__init__(self, cache, index)
        StateLayer.__init__(self, number_of_states)


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """A cache's committed content: slots per row, and stateful layers' states, which commits replace but never change."""

    lengths: list[int]
    states: list[LayerStates]


class SlotCache(SlotPool, Cache):
    """A `SlotPool` that is a transformers `Cache`: each attention layer of the model writes its new slots through it.

    Args:
        layers: The plan of the layers, or the number of layers that all store every slot.
        capacity: As of `SlotPool`, and so are `copies` and `device`.
        places: Where each layer computes, if known, so that each device's pool has room for its own layers alone.

    Attributes:
        tree: The draft of the current pass.
        columns: The inputs that convolutions read in it, by taps and held columns, shared by all layers.
    """

    def __init__(
        self,
        layers: int | LayerPlan,
        capacity: int,
        *,
        copies: int = 1,
        device: torch.device | None = None,
        places: Sequence[Hashable] | None = None,
    ):
        plan = (LayerSpec("full"),) * layers if isinstance(layers, int) else layers.layers
        places = [None] * len(plan) if places is None else places
        names = [(layer.shape, places[n]) if layer.slots else (layer.kind, n) for n, layer in enumerate(plan)]
        SlotPool.__init__(self, names, capacity, copies=copies, device=device)
        Cache.__init__(self, layers=[self._new_layer(n, layer) for n, layer in enumerate(plan)])
        self.tree: Tree | None = None
        self.columns: dict[tuple[int, int], Tensor] = {}

    def _new_layer(self, index: int, layer: LayerSpec) -> object:
        if layer.states:
            return MixedLayer(self, index, layer.states) if layer.slots else StateLayer(layer.states)
        if layer.kind == "cross":
            return CrossLayer()
        return SlotLayer(self, index) if layer.slots else EmptyLayer()

    def __deepcopy__(self, memo: dict[int, object]) -> SlotCache:
        """Return a copy whose layers write into the copy, not through their references into this cache."""
        new = memo[id(self)] = object.__new__(type(self))
        for name, value in vars(self).items():
            setattr(new, name, deepcopy(value, memo))
        for layer in new.layers:
            if isinstance(layer, SlotLayer):
                layer._cache = ref(new)
        return new

    @property
    def stateful(self) -> list[StateLayer]:
        """The layers that keep recurrent states."""
        return [layer for layer in self.layers if isinstance(layer, StateLayer)]

    def open(self, tree: Tree | None) -> None:
        """Set the draft of the next pass, which layers with states read; None for a pass without a draft."""
        self.tree, self.columns = tree, {}
        for layer in self.stateful if tree is not None else ():
            layer.open()

    def has_previous_state(self, layer_idx: int | None = None, *args, **kwargs) -> bool:
        """Return whether a layer has states; a mixer that names no layer asks about its own, which is served now."""
        if layer_idx is None:
            served = (
                n for n, layer in enumerate(self.layers) if isinstance(layer, StateLayer) and layer.made is not None
            )
            layer_idx = next(served, None)
        return super().has_previous_state(layer_idx, *args, **kwargs)

    def commit(self, path: list[list[int]]) -> None:
        """Commit the nodes `path[b]` of row b from the last pass, in ascending order, and discard the other nodes."""
        stateful = self.stateful
        if stateful:
            paths = CommittedPaths(path * self.copies)
            for layer in stateful:
                layer.commit(paths)
        super().commit(path)

    def mark(self, pending: int = 0) -> CacheSnapshot:
        """Return a snapshot of the committed content, plus `pending` slots of the last pass in every row."""
        return CacheSnapshot([n + pending for n in self.lengths], [layer.committed for layer in self.stateful])

    def back(self, mark: CacheSnapshot) -> None:
        """Return to a snapshot: slots committed since then no longer count, and its states are restored."""
        self.cut(mark.lengths)
        for layer, states in zip(self.stateful, mark.states, strict=True):
            layer.committed, layer.pending = states, []

"""A slot cache that models of transformers write into, with a typed layer for each of theirs.

All layers keep one contract: a pass never changes committed state, `commit` is the only mutation, the next pass forgets an
uncommitted one, and rows that have stopped stay untouched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from weakref import ref

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from mmspec.core.compat import DummyLayer
from mmspec.core.layer_plan import LayerPlan, LayerSpec
from mmspec.core.pool import SlotPool
from mmspec.core.tree import Tree
from mmspec.core.tree_recurrence import CommittedPaths


class SlotLayer(CacheLayerMixin):
    """One layer's view of a SlotCache; all state lives in the cache, which it must not keep alive: in a cycle every request's
    keys and values would stay until Python looks for cycles.

    Layers with a window or a chunk keep every slot, too: what they see of them is their mask's to say.
    """

    is_croppable = True
    is_sliding = False

    def __init__(self, cache: SlotCache, index: int):
        self._cache, self.index, self.is_initialized = ref(cache), index, False

    @property
    def cache(self) -> SlotCache:
        return self._cache()

    @property
    def keys(self) -> Tensor | None:
        """All slots, [rows, heads, slots, dim], those beyond each row's length too; None before the first pass."""
        return self.cache.at(self.index)[0] if self.is_initialized else None

    @property
    def values(self) -> Tensor | None:
        """As `keys`."""
        return self.cache.at(self.index)[1] if self.is_initialized else None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.cache.reserve(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        found = self.cache.write(self.index, key_states, value_states)
        self.is_initialized = True
        return found

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.width + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.width

    def get_max_length(self) -> int:
        return -1


class EmptyLayer(DummyLayer):
    """A layer without a memory of its own: it has no attention, or reads the keys and values that another one stored."""


class CrossLayer(CacheLayerMixin):
    """Keys and values of what a prompt shows beside its tokens: written once, by the prompt, and then only read."""

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
    """What a layer remembers, by the number of the pair. conv: [rows, C, K], the last K inputs of a convolution.   recurrent:
    [rows, ...].   Either is None where a layer has none."""

    conv: dict[int, Tensor | None] = field(default_factory=dict)
    recurrent: dict[int, Tensor | None] = field(default_factory=dict)

    def rows(self, index: Tensor) -> LayerStates:
        """Copies of some rows. index: int64 [n]."""
        return LayerStates(
            *({n: None if x is None else x[index] for n, x in one.items()} for one in (self.conv, self.recurrent))
        )

    @classmethod
    def joined(cls, several: list[LayerStates]) -> LayerStates:
        """The rows of several, one behind the other."""
        return cls(*(
            {n: x if x is None else torch.cat([one[n] for one in kind]) for n, x in kind[0].items()}
            for kind in ([states.conv for states in several], [states.recurrent for states in several])
        ))  # fmt: skip

    def put(self, index: Tensor, other: LayerStates) -> LayerStates:
        """These states with `other` in the rows `index`, int64 [n]."""
        return LayerStates(*(
            {n: x if x is None else x.index_copy(0, index, new[n].to(x)) for n, x in old.items()}
            for old, new in ((self.conv, other.conv), (self.recurrent, other.recurrent))
        ))  # fmt: skip


class StateUpdate(Protocol):
    """What a pass over a draft left of one mixer of a layer."""

    def behind(self, states: LayerStates, paths: CommittedPaths) -> LayerStates:
        """`states`, those before the pass, with this mixer's own behind each row's accepted path."""


class StateLayer(LinearAttentionCacheLayerMixin):
    """The prompt's pass commits its states itself. Any later pass runs inside `serving`, which shows a mixer states and takes
    what it makes of them, and leaves its parts in `pending`; `commit` asks these for the states behind the accepted path.

    committed: the states behind all committed tokens.   pending: parts of the last pass, None before the first.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, number_of_states: int = 1):
        LinearAttentionCacheLayerMixin.__init__(self, number_of_states)
        self.committed = LayerStates()
        self.pending: list[StateUpdate] | None = None
        self.made: LayerStates | None = None
        self.full: dict[int, Tensor] = {}

    def lazy_initialization(self, *args, **kwargs) -> None:
        return None

    def open(self) -> None:
        """Begins a pass over a draft; one that was not committed is forgotten."""
        self.pending = []

    @contextmanager
    def serving(self, before: LayerStates, shown: LayerStates) -> Iterator[LayerStates]:
        """A mixer called inside sees the states `shown`, and what it adds is put behind those `before`.

        Yields the states it leaves; `full` holds a convolution's window and inputs, [rows, C, K + N].
        """
        self.made, self.full = LayerStates(dict(before.conv), dict(before.recurrent)), {}
        for n in range(self.number_of_states):
            self.conv_states[n], self.recurrent_states[n] = shown.conv.get(n), shown.recurrent.get(n)
            # Without states to step from, every version of a class reads a single node as it reads several.
            self.has_previous_state[n] = n in shown.conv or n in shown.recurrent
        try:
            yield self.made
        finally:
            self.made = None
            self.has_previous_state = dict.fromkeys(self.has_previous_state, True)  # models ask for it to choose a mask

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs
    ) -> Tensor:
        """Takes a convolution's inputs [rows, C, N] and returns them behind those before, [rows, C, K + N]."""
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
        return full

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs) -> Tensor:
        """Takes the recurrent states behind a call."""
        if self.made is None:
            self._check_prompt()
            self.committed.recurrent[state_idx] = recurrent_states.clone()
        else:
            self.made.recurrent[state_idx] = recurrent_states
        return recurrent_states

    def _check_prompt(self) -> None:
        if self.pending is not None:
            raise ValueError("model: expected drafted passes to go through mixers that are known, got one that writes its "
                             "state itself; decode it with model.generate")  # fmt: skip

    def commit(self, paths: CommittedPaths) -> None:
        """Moves each row's states to the end of its path. Behind the prompt there is nothing to do: its last token's state is
        committed already, though its slot is counted only now."""
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
    """What a cache holds at one time, to go back to. lengths: committed slots per row.   states: of its layers with states,
    shared with the cache, whose commits make new ones."""

    lengths: list[int]
    states: list[LayerStates]


class SlotCache(SlotPool, Cache):
    """A `SlotPool` that is a transformers `Cache`: each of the model's attention layers writes its new slots through it.

    layers: what each layer keeps, or the number of layers that all keep every slot.
    places: where each layer computes, where that is known, so that a pool has room for the layers of its device alone.
    tree: the draft that a pass goes over, while it does.   columns: what convolutions read of it, by taps and held columns:
        worked out once for all layers.
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
        Cache.__init__(self, layers=[self._made(n, layer) for n, layer in enumerate(plan)])
        self.tree: Tree | None = None
        self.columns: dict[tuple[int, int], Tensor] = {}

    def _made(self, index: int, layer: LayerSpec) -> object:
        if layer.states:
            return MixedLayer(self, index, layer.states) if layer.slots else StateLayer(layer.states)
        if layer.kind == "cross":
            return CrossLayer()
        return SlotLayer(self, index) if layer.slots else EmptyLayer()

    @property
    def stateful(self) -> list[StateLayer]:
        """The layers that keep recurrent states."""
        return [layer for layer in self.layers if isinstance(layer, StateLayer)]

    def open(self, tree: Tree | None) -> None:
        """Says over which draft the next pass goes: layers with states have to know. None: over none."""
        self.tree, self.columns = tree, {}
        for layer in self.stateful if tree is not None else ():
            layer.open()

    def commit(self, path: list[list[int]]) -> None:
        """Keeps what the last pass brought of the nodes `path[b]`, ascending node indices of row b, and forgets the rest."""
        stateful = self.stateful
        if stateful:
            paths = CommittedPaths(path * self.copies)
            for layer in stateful:
                layer.commit(paths)
        super().commit(path)

    def mark(self, pending: int = 0) -> CacheSnapshot:
        """What is committed now. pending: slots of the last pass that count too, in every row."""
        return CacheSnapshot([n + pending for n in self.lengths], [layer.committed for layer in self.stateful])

    def back(self, mark: CacheSnapshot) -> None:
        """Forgets what was committed since a mark: slots are no longer counted, states are those it holds."""
        self.cut(mark.lengths)
        for layer, states in zip(self.stateful, mark.states, strict=True):
            layer.committed, layer.pending = states, []

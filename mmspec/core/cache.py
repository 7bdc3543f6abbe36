"""A slot cache that models of transformers write into, with a layer of its own kind for each of theirs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from mmspec.core.layers.paths import Paths
from mmspec.core.layers.plan import Layer, Plan
from mmspec.core.layers.slot_layers import CrossLayer, EmptyLayer, SlotLayer
from mmspec.core.layers.state_layer import MixedLayer, StateLayer, States
from mmspec.core.pool import SlotPool
from mmspec.core.tree import Tree


@dataclass(frozen=True, slots=True)
class Mark:
    """What a cache holds at one time, to go back to. lengths: committed slots per row.   states: of its layers with states,
    shared with the cache, whose commits make new ones."""

    lengths: list[int]
    states: list[States]


class SlotCache(SlotPool, Cache):
    """A `SlotPool` that is a transformers `Cache`: each of the model's attention layers writes its new slots through it.

    layers: what each layer keeps, or the number of layers that all keep every slot.
    places: where each layer computes, where that is known, so that a pool has room for the layers of its device alone.
    tree: the draft that a pass goes over, while it does.   columns: what convolutions read of it, by taps and held columns:
        worked out once for all layers.
    """

    def __init__(
        self,
        layers: int | Plan,
        capacity: int,
        *,
        copies: int = 1,
        device: torch.device | None = None,
        places: Sequence[Hashable] | None = None,
    ):
        plan = (Layer("full"),) * layers if isinstance(layers, int) else layers.layers
        places = [None] * len(plan) if places is None else places
        names = [(layer.shape, places[n]) if layer.slots else (layer.kind, n) for n, layer in enumerate(plan)]
        SlotPool.__init__(self, names, capacity, copies=copies, device=device)
        Cache.__init__(self, layers=[self._made(n, layer) for n, layer in enumerate(plan)])
        self.tree: Tree | None = None
        self.columns: dict[tuple[int, int], Tensor] = {}

    def _made(self, index: int, layer: Layer) -> object:
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
            paths = Paths(path * self.copies)
            for layer in stateful:
                layer.commit(paths)
        super().commit(path)

    def mark(self, pending: int = 0) -> Mark:
        """What is committed now. pending: slots of the last pass that count too, in every row."""
        return Mark([n + pending for n in self.lengths], [layer.committed for layer in self.stateful])

    def back(self, mark: Mark) -> None:
        """Forgets what was committed since a mark: slots are no longer counted, states are those it holds."""
        self.cut(mark.lengths)
        for layer, states in zip(self.stateful, mark.states, strict=True):
            layer.committed, layer.pending = states, []

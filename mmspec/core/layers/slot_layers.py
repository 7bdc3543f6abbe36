"""Layers whose keys and values lie in the slots of the cache's pools, and layers that hold nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from mmspec.core.compat import DummyLayer

if TYPE_CHECKING:
    from mmspec.core.cache import SlotCache


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

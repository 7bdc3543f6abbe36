"""A slot pool that models of transformers write into."""

from __future__ import annotations

from weakref import ref

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from mmspec.core.pool import SlotPool


class SlotLayer(CacheLayerMixin):
    """One layer's view of a SlotCache; all state lives in the cache, which it must not keep alive: in a cycle every request's
    keys and values would stay until Python looks for cycles."""

    is_croppable = True
    is_sliding = False

    def __init__(self, cache: SlotCache, index: int):
        super().__init__()
        self._cache, self.index, self.is_initialized = ref(cache), index, True

    @property
    def cache(self) -> SlotCache:
        return self._cache()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.cache.reserve(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        return self.cache.write(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.width + query_length, 0

    def get_seq_length(self) -> int:
        return self.cache.width

    def get_max_length(self) -> int:
        return -1


class SlotCache(SlotPool, Cache):
    """A `SlotPool` that is a transformers `Cache`: each of the model's attention layers writes its new slots through it."""

    def __init__(self, layers: int, capacity: int, *, copies: int = 1):
        SlotPool.__init__(self, layers, capacity, copies=copies)
        Cache.__init__(self, layers=[SlotLayer(self, i) for i in range(layers)])

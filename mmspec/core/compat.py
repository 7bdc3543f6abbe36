"""Names and fields that only newer versions of transformers have, looked up where they are used.

The lowest supported version in `pyproject.toml` is tested by `make test-floor`. A name moves out of this file when that
version has it.
"""

from __future__ import annotations

from typing import NoReturn

from transformers import cache_utils


class _LayerWithoutMemory:
    """The `DummyLayer` of transformers 5.23, for earlier versions: every operation on stored keys does nothing."""

    supports_early_init = False
    is_compileable = True
    is_croppable = True

    def __init__(self, **kwargs: object):
        self.is_initialized = True
        self.keys = self.values = None

    def update(self, key_states: object, value_states: object, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError("a layer without a memory cannot store keys and values")

    def _nothing(self, *args: object) -> None:
        return None

    offload = prefetch = reset = crop = reorder_cache = batch_repeat_interleave = batch_select_indices = _nothing

    def get_max_length(self) -> int:
        return -1


# transformers leaves this class out when it computes masks and lengths of a cache
DummyLayer: type = getattr(cache_utils, "DummyLayer", _LayerWithoutMemory)


def kv_sharing_modes(config: object) -> list[str | None]:
    """Return how every layer of a decoder uses the keys and values of other layers.

    Args:
        config: The text config of a model. Newer versions have the field `kv_sharing_modes`; in older versions the last
            `num_kv_shared_layers` layers read the keys of earlier layers.

    Returns:
        One entry a layer: "reuse" for a layer that stores nothing and reads the keys of an earlier layer, "store" for a
        layer whose keys others read, where the version reports it, and None for all others.
    """
    count = config.num_hidden_layers
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is not None:
        return list(modes)
    first = count - (getattr(config, "num_kv_shared_layers", None) or 0)
    return [None if index < first or first <= 0 else "reuse" for index in range(count)]

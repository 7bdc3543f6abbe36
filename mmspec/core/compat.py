"""Names that only newer versions of the dependencies have."""

from __future__ import annotations

from transformers import cache_utils


class _DummyLayer:
    """`transformers.cache_utils.DummyLayer` for versions that lack it."""

    supports_early_init = False
    is_compileable = True
    is_croppable = True

    def __init__(self, **kwargs: object):
        self.is_initialized = True
        self.keys = self.values = None

    def update(self, key_states, value_states, *args, **kwargs):
        raise NotImplementedError("x")

    def reset(self) -> None: ...


DummyLayer: type = getattr(cache_utils, "DummyLayer", _DummyLayer)

"""The versions of transformers that mmspec runs with, and the names that differ until the lowest version has them.
`make test-floor` tests the lowest supported version, `make test-newest` the newest."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from warnings import warn

import transformers

OLDEST = 5, 13  # as in `pyproject.toml`
NEWEST_TESTED = 5, 24


def check_version(version: str) -> None:
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if number < OLDEST:
        raise ValueError(
            f"transformers: expected version {OLDEST[0]}.{OLDEST[1]} or newer, got {version}; "
            f'run pip install "transformers>={OLDEST[0]}.{OLDEST[1]},<6"'
        )
    if number > NEWEST_TESTED:
        warn(
            f"mmspec is tested with transformers up to {NEWEST_TESTED[0]}.{NEWEST_TESTED[1]}, got {version}; a model is "
            "compared with transformers at its first use, and refused if its tokens differ",
            stacklevel=2,
        )


check_version(transformers.__version__)  # before the imports below, whose names earlier versions lack

from transformers import cache_utils  # noqa: E402
from transformers.modeling_outputs import BaseModelOutputWithPast  # noqa: E402

# the argument and the output of a model that carry the cache: `cache` since transformers 5.24
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"


def with_cache_name(inputs: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a call with its cache under `CACHE`; callers may write either name on every version."""
    caches = [inputs[name] for name in ("cache", "past_key_values") if inputs.get(name) is not None]
    if len(caches) == 2:
        raise ValueError(
            "past_key_values: expected one cache, got past_key_values and cache, two names of the same argument; leave "
            "one out"
        )
    others = {name: value for name, value in inputs.items() if name not in ("cache", "past_key_values")}
    return others | ({CACHE: caches[0]} if caches else {})


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


# transformers 5.13 has a single pair of states a layer, later versions have pairs by number
NUMBERED_STATES = (
    "number_of_states" in inspect.signature(cache_utils.LinearAttentionCacheLayerMixin.__init__).parameters
)


def stored_by_number(values: dict[int, Any]) -> Any:
    return values if NUMBERED_STATES else values[0]


def read_by_number(stored: Any) -> dict[int, Any]:
    return stored if isinstance(stored, dict) else {0: stored}


def undecorated(function: Callable) -> Callable:
    """Return the function inside decorators, which before transformers 5.17 do not name the function that they wrap."""
    function = inspect.unwrap(function)
    names = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    return names["forward_func"].cell_contents if "forward_func" in names else function


# transformers leaves this class out when it computes masks and lengths of a cache
DummyLayer: type = getattr(cache_utils, "DummyLayer", _LayerWithoutMemory)


def kv_sharing_modes(config: object) -> list[str | None]:
    """Return per layer of a text config: "reuse" for a layer that stores nothing and reads the keys of an earlier
    layer, "store" where others read its keys and the version reports it, else None. In versions without the field the
    last `num_kv_shared_layers` reuse."""
    count = config.num_hidden_layers
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is not None:
        return list(modes)
    first = count - (getattr(config, "num_kv_shared_layers", None) or 0)
    return [None if index < first or first <= 0 else "reuse" for index in range(count)]

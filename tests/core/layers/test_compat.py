"""Stand-ins for names that older versions of transformers lack do what the newer names do."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import cache_utils
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

from mmspec.core.layers import compat
from mmspec.core.layers.layer_plan import layer_plan


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type:
    """The `DummyLayer` of `compat` where transformers has none: of a second copy of the module, since classes inherit from
    the first."""
    with monkeypatch.context() as older:
        older.delattr(cache_utils, "DummyLayer", raising=False)
        spec = spec_from_file_location("older_compat", compat.__file__)
        copy = module_from_spec(spec)
        spec.loader.exec_module(copy)
    return copy.DummyLayer


def test_a_layer_without_memory_answers_all_that_a_cache_calls(stand_in: type) -> None:
    layer = stand_in()
    for name in ("offload", "prefetch", "reset"):
        getattr(layer, name)()
    layer.crop(-1)
    layer.reorder_cache(torch.zeros(1))
    layer.batch_repeat_interleave(2)
    layer.batch_select_indices(torch.zeros(1))
    assert layer.get_max_length() == -1 and layer.keys is layer.values is None and layer.is_initialized
    with pytest.raises(NotImplementedError):
        layer.update(torch.ones(1), torch.ones(1))


def test_a_layer_without_memory_has_the_names_of_the_newer_class(stand_in: type) -> None:
    newer = getattr(cache_utils, "DummyLayer", None)
    if newer is None:
        pytest.skip(f"transformers {transformers.__version__} has no DummyLayer to compare with")
    assert {name for name in vars(newer) if not name.startswith("_")} <= set(vars(stand_in))


@pytest.mark.parametrize("shared", (0, 1, 2))
def test_shared_layers_are_read_from_their_number_where_there_are_no_modes(shared: int) -> None:
    types = ["sliding_attention", "full_attention"] * 2
    config = Gemma4TextConfig(num_hidden_layers=4, layer_types=types, num_kv_shared_layers=shared, sliding_window=8)
    count = SimpleNamespace(num_hidden_layers=4, num_kv_shared_layers=shared)
    reuse = [None] * (4 - shared) + ["reuse"] * shared
    assert compat.kv_sharing_modes(count) == reuse
    assert [mode if mode == "reuse" else None for mode in compat.kv_sharing_modes(config)] == reuse
    assert [layer.kind == "shared" for layer in layer_plan(config).layers] == [mode == "reuse" for mode in reuse]


def test_a_config_without_either_field_shares_nothing() -> None:
    assert compat.kv_sharing_modes(SimpleNamespace(num_hidden_layers=3)) == [None] * 3
    assert compat.kv_sharing_modes(SimpleNamespace(num_hidden_layers=3, num_kv_shared_layers=3)) == [None] * 3

"""One cache of layers of every kind: pools by shape and device, and a request that can be dropped or interleaved."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
from torch import Tensor

from mmspec.core.layers.compat import DummyLayer
from mmspec.core.layers.layer_plan import LayerPlan, LayerSpec, layer_plan
from mmspec.core.layers.tree_recurrence import CommittedPaths
from mmspec.core.round.cache import CrossLayer, EmptyLayer, LayerStates, MixedLayer, SlotCache, SlotLayer, StateLayer
from mmspec.core.round.tree import chain


class Config:
    """A text config."""

    def __init__(self, **fields: object):
        self.num_hidden_layers = 4
        self.__dict__.update(fields)


ALL = LayerPlan(
    (
        LayerSpec("full"),
        LayerSpec("window", 4, "sliding_window"),
        LayerSpec("shared", 4),
        LayerSpec("cross"),
        LayerSpec("states", states=1),
        LayerSpec("full and states", states=2),
        LayerSpec("empty"),
    )
)


def test_every_kind_of_layer_has_its_class_and_only_slots_are_allocated() -> None:
    cache = SlotCache(ALL, 4)
    kinds = [SlotLayer, SlotLayer, EmptyLayer, CrossLayer, StateLayer, MixedLayer, EmptyLayer]
    assert [type(layer) for layer in cache.layers] == kinds
    for layer in (0, 1, 5):
        cache.update(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4), layer)
    assert len(cache.groups) == 1 and cache.keys.shape == (3, 2, 1, 4, 4)
    linear = cache.is_linear
    # transformers 5.24 no longer calls layer 5, which has slots too, linear
    assert linear[:5] + linear[6:] == [False] * 4 + [True, False]
    assert cache.get_seq_length() == 0
    assert [isinstance(layer, DummyLayer) for layer in cache.layers] == [n in (2, 6) for n in range(7)]
    with pytest.raises(NotImplementedError):
        cache.update(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4), 2)


def test_layers_on_several_devices_keep_pools_of_their_own() -> None:
    cache = SlotCache(4, 4)
    for layer, device in enumerate(("cpu", "cpu", "meta", "meta")):
        for _ in range(2):
            cache.update(torch.ones(3, 1, 2, 4, device=device), torch.ones(3, 1, 2, 4, device=device), layer)
    assert [str(group.device) for group in cache.groups] == ["cpu", "meta"]
    cache.advance([2, 1, 0])  # ragged: index tensors have to follow each pool's device
    for layer, device in enumerate(("cpu", "cpu", "meta", "meta")):
        keys, _ = cache.update(torch.ones(3, 1, 3, 4, device=device), torch.ones(3, 1, 3, 4, device=device), layer)
        assert str(keys.device) == device and keys.shape[2] == 5
    cache.commit([[0, 2], [], [1]])
    assert cache.lengths == [4, 1, 1]


def test_cross_attention_is_written_by_the_prompt_and_outlives_commits() -> None:
    cache, shown = SlotCache(ALL, 4), torch.randn(2, 1, 7, 4)
    assert not cache.layers[3].is_initialized
    cache.update(shown, -shown, 3)
    cache.update(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4), 0)
    cache.commit([[0, 2], []])
    assert cache.layers[3].keys is shown and torch.equal(cache.layers[3].values, -shown)


class Noted:
    """A part that says which paths it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[list[int]]] = []

    def behind(self, states: LayerStates, paths: CommittedPaths) -> LayerStates:
        self.asked.append(paths.rows)
        return LayerStates({0: states.conv[0] + 1})


def test_states_move_only_by_a_commit_and_once() -> None:
    """The prompt's own commit counts its last slot and moves no state; a forgotten pass leaves nothing to commit."""
    cache = SlotCache(ALL, 4)
    layer: StateLayer = cache.layers[4]
    prompt = torch.arange(6.0).view(1, 2, 3)
    assert torch.equal(layer.update_conv_state(prompt, 0, conv_kernel_size=2), prompt)
    window: Tensor = layer.committed.conv[0]
    assert torch.equal(window, prompt[..., -2:])
    layer.commit(CommittedPaths([[0]]))
    assert torch.equal(layer.committed.conv[0], window)
    forgotten, kept = Noted(), Noted()
    for part in (forgotten, kept):
        cache.open(chain(2))
        layer.pending.append(part)
    layer.commit(CommittedPaths([[0, 1]]))
    layer.commit(CommittedPaths([[0]]))  # nothing is left to move
    assert not forgotten.asked and kept.asked == [[[0, 1]]] and torch.equal(layer.committed.conv[0], window + 1)


def test_a_pass_of_an_unknown_mixer_is_refused_instead_of_moving_states() -> None:
    cache = SlotCache(ALL, 4)
    cache.layers[4].update_conv_state(torch.ones(1, 2, 3), 0, conv_kernel_size=2)
    cache.open(chain(1))
    for write in (cache.update_conv_state, cache.update_recurrent_state):
        with pytest.raises(ValueError, match="writes its own state"):
            write(torch.ones(1, 2, 3), 4)


def test_a_cache_of_all_kinds_is_freed_with_its_request() -> None:
    gc.collect()
    gc.disable()
    try:
        cache = SlotCache(ALL, 4)
        cache.update(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 5)
        gone = ref(cache)
        del cache
        assert gone() is None
    finally:
        gc.enable()


def test_plans_follow_configs() -> None:
    windowed = layer_plan(Config(sliding_window=16))
    assert [layer.width for layer in windowed.layers] == [16] * 4 and not windowed.mixed
    assert not layer_plan(Config(sliding_window=16, use_sliding_window=False)).narrow
    types = ["sliding_attention", "full_attention", "linear_attention", "moe"]
    mixed = layer_plan(Config(sliding_window=16, layer_types=types))
    assert mixed.mixed and mixed.stateful == (2,) and mixed.layers[3].kind == "empty"
    shared = layer_plan(
        Config(sliding_window=16, layer_types=types[:2] * 2, kv_sharing_modes=["store", None, "reuse", None])
    )
    assert (shared.layers[2].kind, shared.layers[2].width, shared.layers[2].slots) == ("shared", 16, False)
    assert layer_plan(Config(cross_attention_layers=[1])).layers[1].kind == "cross"
    assert layer_plan(Config(attn_temperature_tuning=True, floor_scale=8192)).temperature == 8191
    with pytest.raises(ValueError, match="got indexed_attention, lightning; decode it with model.generate"):
        layer_plan(Config(layer_types=["full_attention", "indexed_attention", "lightning", "full_attention"]))

"""EAGLE-3 files: levels, residual, vocabulary and positions as their configs say."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.vlm.drafters.eagle3 import Eagle3
from mmspec.vlm.drafters.eagle3.published import layer_windows
from tests.vlm.drafters.published_files import PUBLISHED, SMALL_DRAFT_VOCAB, random_file
from tests.vlm.tiny import HIDDEN, VOCAB, tiny

ORIGINAL, SPECULATORS = (PUBLISHED[n] for n in ("EAGLE3-LLaMA3.1-Instruct-8B", "speculators EAGLE-3 for Llama-3.1-8B"))


def load(published=ORIGINAL, target=None, state=None, inner=None, **config: object) -> Eagle3:
    """The small file with some fields of its config changed; `inner` changes the layer's."""
    small = {**published.small_config, **config}
    if inner is not None:
        small["transformer_layer_config"] = {**small["transformer_layer_config"], **inner}
    state = random_file(published.shapes(published.small_config)) if state is None else state
    return mmspec.vlm.drafter_from_state_dict("eagle3", state, small, target)


def test_levels_come_from_the_config_or_from_the_target() -> None:
    assert load(eagle_aux_hidden_state_layer_ids=[2, 5, 7]).levels == (2, 5, 7)
    less_one = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 4, 6]}
    assert load(eagle_aux_hidden_state_layer_ids=None, eagle_config=less_one).levels == (2, 5, 7)
    assert load(eagle_aux_hidden_state_layer_ids=None, target=tiny("llama")).levels == (0, 0, 1)
    with pytest.raises(ValueError, match="pass the target"):
        load(eagle_aux_hidden_state_layer_ids=None)


def test_levels_the_target_does_not_have_are_refused() -> None:
    drafter = load(eagle_aux_hidden_state_layer_ids=[2, 16, 29])
    request = dict(input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=4)
    with pytest.raises(ValueError, match="expected layers 0 to 2 of the target, got 16"):
        mmspec.generate(tiny("llama"), drafter=drafter, **request)
    mmspec.generate(tiny("llama"), **request)  # nothing of the refused request is left on the model
    with pytest.raises(ValueError, match="levels: expected layers 0 to 2 of the target, got 29"):
        load(eagle_aux_hidden_state_layer_ids=[0, 1, 29], target=tiny("llama"))


def test_the_residual_is_the_state_unless_the_config_says_otherwise() -> None:
    assert load(SPECULATORS).config.norm_before_residual
    assert not load().config.norm_before_residual
    absent = {name: value for name, value in SPECULATORS.small_config.items() if name != "norm_before_residual"}
    state = random_file(SPECULATORS.shapes(absent))
    assert not mmspec.vlm.drafter_from_state_dict("eagle3", state, absent).config.norm_before_residual


def test_positions_turn_with_the_configs_base() -> None:
    assert load().config.rope_theta == 10000
    assert load(rope_theta=5e5).config.rope_theta == 5e5
    theta = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert load(SPECULATORS, inner=theta).config.rope_theta == 5e5


def test_windows_are_those_of_the_layers_that_slide() -> None:
    sliding = dict(layer_types=["sliding_attention"], sliding_window=8)
    qwen = dict(model_type="qwen3", head_dim=8)
    for layer, window in (
        ({}, 0),
        (dict(sliding_window=8), 0),
        (dict(layer_types=["full_attention"], sliding_window=8), 0),
        (sliding, 8),
        (dict(sliding, sliding_window=None), 0),
        (dict(sliding, **qwen), 0),  # whose class forgets its window without the flag
        (dict(sliding, use_sliding_window=True, **qwen), 8),
        (dict(use_sliding_window=True, sliding_window=8, max_window_layers=0, **qwen), 8),
        (dict(use_sliding_window=True, sliding_window=8, **qwen), 0),
    ):
        assert layer_windows(dict(model_type="llama") | layer, 1) == (window,), layer


def test_without_reduction_there_are_no_buffers() -> None:
    config = {**ORIGINAL.small_config, "draft_vocab_size": VOCAB}
    shapes = {name: shape for name, shape in ORIGINAL.shapes(config).items() if name not in ("d2t", "t2d")}
    drafter = load(state=random_file(shapes), draft_vocab_size=VOCAB)
    assert not drafter.head.reduced and drafter.head.weight.shape[0] == VOCAB


def test_training_leftovers_of_speculators_are_not_kept() -> None:
    state = random_file(SPECULATORS.shapes(SPECULATORS.small_config))
    state |= {"verifier_lm_head.weight": torch.zeros(1), "verifier_norm.weight": torch.zeros(1)}
    assert load(SPECULATORS, state=state).head.size == SMALL_DRAFT_VOCAB


@pytest.mark.parametrize(
    "published, options, message",
    (
        (SPECULATORS, dict(norm_before_fc=True, fc_norm=True), "norm_before_fc: expected it or fc_norm, got both"),
        (SPECULATORS, dict(target_hidden_size=64), "fc.weight: expected shape .*, 192. by the config"),
        (SPECULATORS, dict(inner=dict(model_type="gemma3")), "model_type: expected .* got 'gemma3'"),
        (SPECULATORS, dict(inner=dict(hidden_act="gelu")), "hidden_act: expected 'silu' or 'swish', got 'gelu'"),
        (SPECULATORS, dict(inner=dict(layer_types=["chunked_attention"])), "layer_types: expected"),
        (
            SPECULATORS,
            dict(inner=dict(layer_types=["sliding_attention"], sliding_window=0)),
            "sliding_window: expected at least 1",
        ),
        (ORIGINAL, dict(rope_scaling={"type": "dynamic", "factor": 2.0}), "rope_scaling: expected .* got 'dynamic'"),
        (SPECULATORS, dict(inner=dict(num_hidden_layers=2)), "num_hidden_layers: expected 1 as in the tensors, got 2"),
        (
            ORIGINAL,
            dict(draft_vocab_size=VOCAB + 1),
            "draft_vocab_size: expected 60, as many tokens as d2t lists, got 102",
        ),
    ),
)
def test_unsupported_published_options_are_refused(published, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(published, **options)


@pytest.mark.parametrize(
    "change, message",
    (
        (lambda state: state["d2t"].__setitem__(-1, VOCAB), "d2t: expected offsets to tokens from 0 to 100, each once"),
        (lambda state: state["d2t"].__setitem__(1, -1), "d2t: expected offsets to tokens from 0 to 100, each once"),
        (lambda state: state["t2d"].__setitem__(VOCAB - 1, True), "t2d: expected the tokens that d2t leads to, got 1"),
    ),
)
def test_vocabularies_that_make_no_sense_are_refused(change, message: str) -> None:
    state = random_file(ORIGINAL.shapes(ORIGINAL.small_config))
    change(state)
    with pytest.raises(ValueError, match=message):
        load(state=state)


def test_a_drafter_narrower_than_its_target_has_its_own_embedding_and_head() -> None:
    sizes = dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, target_hidden_size=HIDDEN)
    state = random_file(ORIGINAL.shapes({**ORIGINAL.small_config, **sizes}))
    state |= random_file({"fc.weight": (16, 3 * HIDDEN), "embed_tokens.weight": (VOCAB, 16)})
    assert load(state=state, target=tiny("llama"), **sizes).config.target_hidden_size == HIDDEN
    without = {name: value for name, value in state.items() if name != "embed_tokens.weight"}
    with pytest.raises(
        ValueError, match="target_hidden_size: expected hidden_size 16 for a drafter that uses the target"
    ):
        load(state=without, target=tiny("llama"), **sizes)
    state["fc.weight"] = state["fc.weight"][:, :72]
    with pytest.raises(ValueError, match="expected target_hidden_size 32 as in the target, got 24"):
        load(state=state, target=tiny("llama"), **sizes | {"target_hidden_size": 24})

"""DFlash: where it reads the target, what it takes from configs, and what it refuses."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.drafting.shapes import Chain, StaticTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.block_layers import BlockDrafterConfig, taps_of
from mmspec.vlm.drafters.dflash import DFlash
from mmspec.vlm.hidden_states import LayerOutput, record_states
from tests.vlm.drafters.dflash.test_attention import OWN, SIZES, random_state, speculators, zlab
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import IMAGE, prompt, tiny

# of a published config of the 8B drafter
QWEN3_8B = dict(
    architectures=["DFlashDraftModel"],
    attention_bias=False,
    block_size=16,
    head_dim=128,
    hidden_act="silu",
    hidden_size=4096,
    intermediate_size=12288,
    layer_types=["full_attention"] * 5,
    max_window_layers=5,
    model_type="qwen3",
    num_attention_heads=32,
    num_hidden_layers=5,
    num_key_value_heads=8,
    num_target_layers=36,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=1000000,
    sliding_window=None,
    use_sliding_window=False,
    vocab_size=151936,
    dflash_config={"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
)
PARAMETERS = 1048626432


def published_shapes(config: dict, width: int, taps: int) -> dict[str, tuple[int, ...]]:
    layer, dim = config.get("transformer_layer_config", config), 128
    inner, heads, groups = layer["intermediate_size"], layer["num_attention_heads"], layer["num_key_value_heads"]
    shapes = {"fc.weight": (width, taps * width), "hidden_norm.weight": (width,), "norm.weight": (width,)}
    for n in range(layer["num_hidden_layers"]):
        own = {
            "self_attn.q_proj": (heads * dim, width),
            "self_attn.k_proj": (groups * dim, width),
            "self_attn.v_proj": (groups * dim, width),
            "self_attn.o_proj": (width, heads * dim),
            "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        shapes |= {f"layers.{n}.{name}.weight": shape for name, shape in own.items()}
    return shapes


def test_the_published_drafter_has_these_tensors() -> None:
    with torch.device("meta"):
        state = {name: torch.empty(shape) for name, shape in published_shapes(QWEN3_8B, 4096, 5).items()}
        drafter = mmspec.vlm.drafter_from_state_dict("dflash", state, QWEN3_8B)
    assert len(state) == 58 and sum(weight.numel() for weight in drafter.parameters()) == PARAMETERS
    assert drafter.levels == tuple(LayerOutput(layer) for layer in (1, 9, 17, 25, 33))
    assert (drafter.config.drafted, drafter.config.rope_theta) == (15, 1e6)


def test_default_taps_are_those_of_published_drafters() -> None:
    assert taps_of(36, 5) == (1, 9, 17, 25, 33)
    assert taps_of(32, 5) == (1, 8, 15, 22, 29)
    assert taps_of(64, 5) == (1, 16, 31, 46, 61)
    assert taps_of(28, 5) == (1, 7, 13, 19, 25)
    assert taps_of(36, 1) == (18,)


def test_the_two_layouts_name_the_same_layers() -> None:
    one, two = (mmspec.vlm.drafter_from_state_dict("dflash", random_state(), c) for c in (zlab(), speculators()))
    assert one.config.taps == two.config.taps == (0, 1)
    more = speculators(aux_hidden_state_layer_ids=[1, 2, 9])  # the last is the target's final state
    assert mmspec.vlm.drafter_from_state_dict("dflash", random_state(), more).config.taps == (0, 1)


def test_context_depends_on_the_output_of_tapped_layers_only() -> None:
    model, drafter = tiny("llama"), make("dflash")
    parts, ids = take_apart(model), prompt("llama")["input_ids"]

    def states(layer: int | None) -> torch.Tensor:
        hook = None
        if layer is not None:
            module = parts.decoder.layers[layer]
            hook = module.register_forward_hook(
                lambda module, args, out: out + 1 if torch.is_tensor(out) else (out[0] + 1,)
            )
        with record_states(parts.decoder, (LayerOutput(0),)) as seen:
            model(ids)
        if hook is not None:
            hook.remove()
        return seen.levels

    plain = states(None)
    assert not torch.allclose(states(0), plain)
    assert torch.equal(states(1), plain)
    assert drafter.levels == (LayerOutput(0), LayerOutput(1))


def test_layer_outputs_exclude_the_picture_features_added_afterwards() -> None:
    """DeepStack: what enters the next layer differs, at pictures' tokens alone."""
    inputs, model = prompt("qwen3_vl", 1), tiny("qwen3_vl")
    with record_states(take_apart(model).decoder, (LayerOutput(0), 1)) as seen:
        model(**inputs)
    leaving, entering = seen.levels.chunk(2, -1)
    shown = inputs["input_ids"] == IMAGE
    assert (leaving - entering).abs().amax(-1)[shown].min() > 1e-4
    assert torch.equal(leaving[~shown], entering[~shown])


@pytest.mark.parametrize("level", (2, -1))
def test_a_layer_the_target_does_not_have_is_refused(level: int) -> None:
    with pytest.raises(ValueError, match="levels: expected layers 0 to 1 of the target"):
        with record_states(take_apart(tiny("llama")).decoder, (LayerOutput(level),)):
            pass


def test_pictures_take_their_places_and_no_position_of_the_targets() -> None:
    """On a target with positions on three axes a block stands behind as many positions as there are tokens."""
    inputs = prompt("qwen2_5_vl", 2)
    run = mmspec.vlm.start(tiny("qwen2_5_vl"), drafter=make("dflash"), max_new_tokens=9, do_sample=False, **inputs)
    run.step()
    with torch.no_grad():
        run.state.propose(run.target, run.keys)
    assert run.state.next_position.tolist() == [inputs["input_ids"].shape[1]]
    assert int(run.target.next_position[-1].max()) < inputs["input_ids"].shape[1]


def test_a_block_is_one_pass_for_every_draft_shape() -> None:
    inputs = dict(prompt("llama"), max_new_tokens=12, do_sample=False, return_dict=True)
    for shape in (Chain(FixedLength(2)), Chain(FixedLength(4)), StaticTree((0, 0, 0, 1, 2))):
        stats = mmspec.generate(tiny("llama"), drafter=make("dflash").with_shape(shape), **inputs).stats
        assert stats.drafter_passes <= stats.target_passes


def test_a_longer_draft_than_the_block_is_cut_and_a_deeper_tree_refused() -> None:
    drafter = make("dflash").with_shape(Chain(FixedLength(30)))
    run = mmspec.vlm.start(tiny("llama"), drafter=drafter, max_new_tokens=40, do_sample=False, **prompt("llama"))
    run.step()
    with torch.no_grad():
        assert run.state.propose(run.target, run.keys).tree.max_depth == 4
    with pytest.raises(ValueError, match="at most 4 levels, as many as dflash drafts, got 5"):
        make("dflash").with_shape(StaticTree((0, 0, 1, 2, 3, 4)))


@pytest.mark.parametrize("reduced", (0, 12))
def test_files_of_speculators_with_a_head_of_their_own(reduced: int) -> None:
    state = random_state()
    state |= {"embed_tokens.weight": torch.zeros(20, 16), "lm_head.weight": torch.randn(reduced or 20, 16)}
    if reduced:
        ids = torch.arange(reduced) + 3
        state |= {
            "d2t": ids - torch.arange(reduced),
            "t2d": torch.zeros(20, dtype=torch.bool).index_fill_(0, ids, True),
        }
    drafter = mmspec.vlm.drafter_from_state_dict("dflash", state, speculators(draft_vocab_size=reduced or 20))
    scores = drafter.unary(torch.randn(1, 4, 16), nn.Linear(16, 20, bias=False))
    assert scores.shape == (1, 4, reduced or 20) and (drafter.vocabulary is not None) == bool(reduced)


@pytest.mark.parametrize(
    "config, message",
    (
        (zlab(dflash_config={"mask_token_id": 3}) | {"mask_token_id": 4}, "mask_token_id: expected one value, got 4"),
        (zlab(dflash_config={"block_size": 8}) | {"block_size": 16}, "block_size: expected one value, got 16"),
        (zlab(dflash_config={"mask_token_id": None}), "expected the field mask_token_id, got none"),
        (zlab(dflash_config={"mask_token_id": 20}), "mask_token_id: expected a token below vocab_size 20, got 20"),
        (zlab(is_neox_style=False), "is_neox_style: expected True, got False"),
        (zlab(rope_scaling={"mrope_section": [1, 1, 2], "type": "mrope"}), "rope_scaling: expected plain rotary"),
        (zlab(partial_rotary_factor=0.25), "partial_rotary_factor: expected 1"),
        (zlab(layer_types=["full_attention"]), "layer_types: expected .* for 2 layers"),
        (zlab(layer_types=["linear_attention"] * 2), "layer_types: expected full_attention or sliding_attention"),
        (
            speculators(aux_hidden_state_layer_ids=[0, 2]),
            "aux_hidden_state_layer_ids: expected outputs of layers, from 1",
        ),
        ({**SIZES, "block_size": 5, "mask_token_id": 19}, "expected the field target_layer_ids, got none"),
        ({"dflash_config": OWN}, "expected the fields hidden_size"),
    ),
)
def test_an_invalid_config_reports_one_error(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        mmspec.vlm.drafter_from_state_dict("dflash", random_state(), config)
    assert "\n" not in str(caught.value)


_FITS = dict(hidden_size=32, intermediate_size=8, num_attention_heads=4, vocab_size=101, taps=(0, 1), mask_token_id=3)


@pytest.mark.parametrize(
    "changed, message",
    (
        (dict(hidden_size=16), "expected hidden_size 32 as in the target, got 16"),
        (dict(vocab_size=64), "expected vocab_size 101 as in the target, got 64"),
        (dict(target_hidden_size=64), "expected target_hidden_size 32 as in the target, got 64"),
        (dict(taps=(0, 2)), "expected layers 0 to 1 of the target, got 2"),
    ),
)
def test_a_drafter_of_another_target_reports_one_error(changed: dict, message: str) -> None:
    drafter = DFlash(BlockDrafterConfig(**_FITS | changed))
    for call in (
        lambda: drafter.fitted(tiny("llama")),
        lambda: mmspec.generate(tiny("llama"), drafter=drafter, input_ids=torch.tensor([[5, 6]]), max_new_tokens=3),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_mask_token_beyond_the_targets_embedding_is_refused() -> None:
    model = tiny("llama")
    parts = take_apart(model)
    drafter = DFlash(BlockDrafterConfig(**_FITS | dict(mask_token_id=100)))
    drafter.check(parts)
    from dataclasses import replace

    with pytest.raises(ValueError, match="mask_token_id: expected a row of the target's embedding, 0 to 49, got 100"):
        drafter.check(replace(parts, embed=nn.Embedding(50, 32)))


@pytest.mark.parametrize("name", ("dflash", "dspark", "peagle"))
def test_a_prompt_of_one_token_drafts(name: str) -> None:
    inputs = dict(input_ids=torch.tensor([[7]]), max_new_tokens=8, do_sample=False)
    out = mmspec.generate(tiny("llama"), drafter=make(name), **inputs)
    assert torch.equal(out, tiny("llama").generate(**inputs))

"""Published state dicts load, run and come back; what does not fit is refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.load import check_pair, llamagen_from_state_dict, vq_from_state_dict
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQConfig, VQModel
from tests.imagegen.llamagen.published import (
    TOKENIZERS,
    TRANSFORMERS,
    lantern_state,
    tokenizer_shapes,
    transformer_shapes,
    weights,
)

CLASS = GPTConfig(dim=32, n_layer=2, n_head=4, vocab_size=16, block_size=16, num_classes=5, ffn=24)
CAPTION = GPTConfig(
    dim=32,
    n_layer=2,
    n_head=4,
    n_kv_head=2,
    vocab_size=16,
    block_size=16,
    model_type="t2i",
    cls_token_num=3,
    caption_dim=6,
)
CODES = VQConfig(codebook_size=16, encoder_ch_mult=(1, 2), decoder_ch_mult=(2, 1), z_channels=12, ch=32)


def state_of(config: GPTConfig) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return Transformer(config).state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_every_published_transformer_loads_and_comes_back(name: str) -> None:
    shapes, config = transformer_shapes(name), TRANSFORMERS[name]["config"]
    model = llamagen_from_state_dict(weights(shapes, "meta"), config)
    back = lantern_state(model) if name.startswith("lantern") else model.state_dict()
    assert {key: list(value.shape) for key, value in back.items()} == shapes
    kind, size = name.split("_")[-2:]
    expected = GPTConfig.preset(size, model_type=kind)
    assert replace(model.config, n_kv_head=None, ffn=None) == expected and model.config.hidden == expected.hidden


def test_a_published_size_is_known_by_its_weights() -> None:
    found = llamagen_from_state_dict(weights(transformer_shapes("c2i_B"), "meta")).config
    assert found == GPTConfig.preset("B")


@torch.no_grad()
def test_the_published_b_runs_at_full_size() -> None:
    state = weights(transformer_shapes("c2i_B"))
    model = llamagen_from_state_dict({"model": state}, TRANSFORMERS["c2i_B"]["config"])
    out = model.training_logits(torch.tensor([7, 1000]), torch.randint(0, 16384, (2, 3)))
    assert out.shape == (2, 3, 16384) and out.isfinite().all()
    assert same(model.state_dict(), state)


@torch.no_grad()
@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_published_tokenizer_runs_and_comes_back(name: str) -> None:
    shapes, config = tokenizer_shapes(name), TOKENIZERS[name]["config"]
    state = weights(shapes)
    state["quantize.codebook_used"].zero_()
    model = vq_from_state_dict({"model": state}, config)
    assert model.config == VQConfig.preset(name) == vq_from_state_dict(state).config
    side = 2 * model.config.downsample
    quantized, codes = model.encode(torch.rand(1, 3, side, side) * 2 - 1)
    assert codes.shape == (1, 4) and model.decode_code(codes).shape == (1, 3, side, side)
    assert model.decode(quantized).isfinite().all()
    usage = {"quantize.codebook_used": state["quantize.codebook_used"]}
    assert same({**model.state_dict(), **usage}, state)


@torch.no_grad()
@pytest.mark.parametrize("config", [CLASS, CAPTION], ids=["c2i", "t2i"])
def test_a_tiny_transformer_loads_from_every_wrapper(config: GPTConfig) -> None:
    state = state_of(config)
    given = torch.tensor([2]) if config.model_type == "c2i" else torch.randn(1, 3, 6)
    model = Transformer(config).eval()
    model.load_state_dict(state)
    tokens = torch.randint(0, 16, (1, 16))
    expected = model.training_logits(given, tokens)
    compiled = {f"_orig_mod.{key}": value for key, value in state.items()}
    table = {"freqs_cis": torch.zeros(config.cls_token_num + 16, 4, 2)}
    ran = {"layers.0.attention.kv_cache.k_cache": torch.zeros(1)}
    other = {key: torch.zeros_like(value) for key, value in state.items()}
    for sd in (
        state,
        {"model": state, "steps": 7},
        {"module": compiled},
        {"state_dict": {"model": state}},
        {"ema": state},
        {"ema": state, "optimizer": {"state": {}}, "steps": 7},
        {"ema": other, "model": state},
        {**state, **table, **ran},
    ):
        loaded = llamagen_from_state_dict(sd, config)
        assert torch.equal(loaded.training_logits(given, tokens), expected)
        assert same(loaded.state_dict(), state) and not loaded.training


@torch.no_grad()
def test_lanterns_layout_is_the_same_model() -> None:
    state = state_of(CAPTION)
    model = llamagen_from_state_dict(state, CAPTION)
    sd = lantern_state(model)
    assert "model.layers.1.self_attn.k_proj.weight" in sd and sd["model.layers.1.self_attn.k_proj.weight"].shape == (
        16,
        32,
    )
    config = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "input_type": "t2i",
        "model_type": "llama",
        "hidden_act": "silu",
        "block_size": 16,
    }
    assert same(llamagen_from_state_dict(sd, config).state_dict(), state)


def test_config_fields_known_from_the_weights_are_optional() -> None:
    assert (
        llamagen_from_state_dict(state_of(CAPTION), {"n_head": 4, "n_kv_head": 2, "block_size": 16}).config.hidden
        == 256
    )
    found = llamagen_from_state_dict(state_of(CLASS), {"n_head": 4, "image_size": 64}).config
    assert found == CLASS
    model = VQModel(CODES)
    assert vq_from_state_dict(model.state_dict()).config == CODES


def test_a_tokenizer_loads_from_every_wrapper() -> None:
    state = VQModel(CODES).state_dict()
    other = {key: torch.zeros_like(value) for key, value in state.items()}
    for sd in (
        state,
        {"ema": state},
        {"ema": state, "optimizer": {}, "steps": 7},
        {"ema": other, "model": state},
        {"state_dict": {"model": state}},
        {f"module.{key}": value for key, value in state.items()},
    ):
        assert same(vq_from_state_dict(sd).state_dict(), state)


@torch.no_grad()
def test_no_caption_takes_the_first_of_the_stored_rows() -> None:
    state, drop = state_of(CAPTION), torch.tensor([True])
    null, features = torch.randn(120, 6), torch.randn(1, 3, 6)
    model = llamagen_from_state_dict({**state, "cls_embedding.uncond_embedding": null}, CAPTION)
    assert model.config == CAPTION and torch.equal(model.state_dict()["cls_embedding.uncond_embedding"], null)
    expected = llamagen_from_state_dict({**state, "cls_embedding.uncond_embedding": null[:3]}, CAPTION)
    assert torch.equal(model.condition(features, drop), expected.condition(features, drop))
    assert same(model.state_dict(), {**state, "cls_embedding.uncond_embedding": null})


@torch.no_grad()
def test_too_few_rows_for_no_caption_are_refused_when_they_are_needed() -> None:
    state = {**state_of(CAPTION), "cls_embedding.uncond_embedding": torch.randn(2, 6)}
    model = llamagen_from_state_dict(state, CAPTION)
    assert model.condition(torch.randn(1, 3, 6)).shape == (1, 3, 32)
    with pytest.raises(
        ValueError, match=r"guidance_scale: expected at most 1, .* has 2 of the 3 rows for no caption, got"
    ):
        model.condition(torch.randn(1, 3, 6), torch.tensor([True]))


@torch.no_grad()
@pytest.mark.parametrize("given", [{"class_dropout_prob": 0}, {"num_classes": 6}])
def test_a_class_table_may_lack_the_row_for_no_class(given: dict) -> None:
    state = state_of(CLASS)
    model = llamagen_from_state_dict(state, {"n_head": 4, "block_size": 16, **given})
    assert model.config == replace(CLASS, num_classes=6, class_dropout_prob=0)
    assert same(model.state_dict(), state)
    expected = llamagen_from_state_dict(state, CLASS)
    assert torch.equal(model.condition(torch.tensor([5])), expected.condition(torch.tensor([5])))
    with pytest.raises(ValueError, match="guidance_scale: expected at most 1, .* num_classes 6 .*, got"):
        model.condition(torch.tensor([5]), torch.tensor([True]))


def test_weights_are_not_copied() -> None:
    state = state_of(CLASS)
    assert llamagen_from_state_dict(state, CLASS).output.weight.data_ptr() == state["output.weight"].data_ptr()


def without(state: dict, key: str) -> dict:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (lambda sd: without(sd, "layers.1.attention.wo.weight"), {}, r"got no layers\.1\.attention\.wo\.weight"),
        (lambda sd: without(sd, "norm.weight"), {"dim": 32}, r"got no norm\.weight"),
        (lambda sd: {**sd, "head.bias": torch.zeros(3)}, {}, r"unknown head\.bias"),
        (lambda sd: sd, {"n_layer": 1}, r"unknown layers\.1\.attention\.wqkv\.weight, .* and 3 more"),
        (lambda sd: sd, {"n_layer": 3}, r"got no layers\.2\."),
        (lambda sd: {**sd, "output.weight": torch.zeros(16, 31)}, {}, r"output\.weight of shape \(16, 31\) instead of"),
        (lambda sd: sd, {"dim": 64}, r"of shape .* instead of"),
        (lambda sd: sd, {"model_type": "t2i", "cls_token_num": 120}, "model_type: expected a caption projection"),
        (lambda sd: {**sd, "freqs_cis": torch.zeros(10, 4, 2)}, {"block_size": 16}, "block_size: expected 9 as"),
        (lambda sd: sd, {"block_size": 16, "image_size": 384}, "block_size: expected 576 for images of 384"),
        (lambda sd: sd, {"block_size": 16, "image_size": 100}, "multiple of downsample_size 16"),
        (lambda sd: sd, {"num_classes": 6, "class_dropout_prob": 0.1}, r"of shape \(6, 32\) instead of \(7, 32\)"),
        (lambda sd: sd, {"num_classes": 5, "class_dropout_prob": 0}, r"of shape \(6, 32\) instead of \(5, 32\)"),
        (lambda sd: sd, {"heads": 4}, r"\['heads'\]"),
        (lambda sd: sd, {"n_head": "x"}, r"n_head: expected int, got 'x'; correct the config"),
        (lambda sd: sd, {"dim": "32"}, "dim: expected int, got '32'"),
        (lambda sd: sd, {"model_type": ["c2i"]}, r"model_type: expected .*, got \['c2i'\]"),
        (lambda sd: sd, {"hidden_size": [32]}, r"hidden_size: expected int, got \[32\]"),
        (lambda sd: sd, {"image_size": "64"}, "image_size: expected a positive whole number, got '64'"),
        (
            lambda sd: sd,
            {"image_size": 64, "downsample_size": -16},
            "downsample_size: expected a positive whole number",
        ),
        (lambda sd: {"optimizer": {}}, {}, r"expected tensors"),
        (lambda sd: {}, {}, "got nothing"),
        (lambda sd: "weights.pt", {}, r"convert a \.pt with `mmspec convert weights\.pt FOLDER --kind llamagen`"),
        (lambda sd: "weights.safetensors", {}, "got none there"),
    ],
)
def test_mismatched_weights_and_configs_are_refused(change: Callable, config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        llamagen_from_state_dict(change(state_of(CLASS)), {"n_head": 4, **config})
    assert "\n" not in str(caught.value)


def test_missing_head_counts_are_required_in_the_config() -> None:
    with pytest.raises(ValueError, match="n_head: expected it in the config"):
        llamagen_from_state_dict(state_of(CLASS))


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (lambda sd: without(sd, "post_quant_conv.bias"), {}, r"got no post_quant_conv\.bias"),
        (lambda sd: {**sd, "loss.scale": torch.zeros(1)}, {}, r"unknown loss\.scale"),
        (lambda sd: sd, {"codebook_size": 32}, r"quantize\.embedding\.weight of shape \(16, 8\) instead of \(32, 8\)"),
        (
            lambda sd: sd,
            {"encoder_ch_mult": (1, 2, 2), "decoder_ch_mult": (1, 2, 2)},
            r"got no encoder\.conv_blocks\.1",
        ),
        (lambda sd: sd, {"encoder_ch_mult": 3}, r"encoder_ch_mult: expected tuple\[int, \.\.\.\], got 3"),
        (lambda sd: "vq_ds16_c2i.pt", {}, "convert a .pt"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(change: Callable, config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vq_from_state_dict(change(VQModel(CODES).state_dict()), config)


def test_a_pair_that_does_not_belong_together_is_refused() -> None:
    check_pair(CLASS, CODES, 8)
    with pytest.raises(ValueError, match="vq: expected a codebook of vocab_size 16, got 16384"):
        check_pair(CLASS, VQConfig())
    with pytest.raises(ValueError, match=r"image_size: expected 8 \(4 tokens of 2 pixels per side\), got 64"):
        check_pair(CLASS, CODES, 64)

"""Published Wan state dicts load under both kinds of names and come back; what does not fit is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mmspec.video import WanConfig, wan_from_state_dict
from mmspec.video.wan.checkpoints import to_diffusers
from tests.video.tiny import GRID, text, wan
from tests.video.wan.published import NAMES, SIZES, numbered, shapes, to_causal

HEADS = {"num_heads": 2}


def on_meta(shape_of: dict[str, list[int]]) -> dict[str, Tensor]:
    return {name: torch.empty(shape, device="meta") for name, shape in shape_of.items()}


@pytest.mark.covering
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ("causal", "diffusers"))
@pytest.mark.parametrize("told", (True, False))
def test_every_published_size_loads_and_comes_back(size: str, kind: str, told: bool) -> None:
    entry, given = SIZES[size], shapes(size, kind)
    assert len(given) == entry["num_keys"]
    model = wan_from_state_dict(on_meta(given), entry[kind]["config"] if told else None)
    own = model.state_dict()
    assert {name: list(value.shape) for name, value in own.items()} == shapes(size, "diffusers")
    back = to_causal(own) if kind == "causal" else own
    assert {name: list(value.shape) for name, value in back.items()} == given
    assert sum(value.numel() for value in own.values()) == entry["num_parameters"]
    heads = entry["causal"]["config"]["num_heads"]
    assert (model.config.num_attention_heads, model.config.attention_head_dim) == (heads, 128)
    assert model.config.text_len == (512 if kind == "causal" else None)


def test_names_are_translated_as_published() -> None:
    for causal, diffusers in NAMES.items():
        pairs = list(zip(numbered(causal, 12), numbered(diffusers, 12), strict=True))
        assert list(to_diffusers(dict(pairs))) == [other for _, other in pairs]


@torch.no_grad()
def test_a_tiny_model_loads_from_every_wrapper_and_name() -> None:
    model = wan(text_len=512)
    state = model.state_dict()
    causal = to_causal(state)
    zeros = {name: torch.zeros_like(value) for name, value in causal.items()}
    given = torch.randn(1, 3, 2, *GRID), torch.full((1, 2), 625.0)
    wanted = model(*given, model.read(text()))
    for sd in (
        state,
        causal,
        {"generator_ema": {f"model.{n}": v for n, v in causal.items()}, "generator": zeros, "critic": zeros},
        {"generator": {f"model._fsdp_wrapped_module.{n}": v for n, v in causal.items()}, "step": 600},
        {f"model.diffusion_model.{n}": v for n, v in causal.items()},
        {n.replace("blocks.1.", "blocks.1._checkpoint_wrapped_module."): v for n, v in causal.items()},
    ):
        loaded = wan_from_state_dict(sd, {**HEADS, "text_len": 512})
        assert not loaded.training and loaded.config == model.config
        assert torch.equal(loaded(*given, loaded.read(text())), wanted)
    assert loaded.proj_out.weight.data_ptr() == state["proj_out.weight"].data_ptr()


def test_half_precision_stays_half_and_config_of_either_kind_fits_either_name() -> None:
    state = {name: value.bfloat16() for name, value in wan().state_dict().items()}
    upstream = {"num_heads": 2, "dim": 24, "in_dim": 3, "model_type": "t2v", "window_size": [-1, -1], "head_dim": 12}
    for sd, config in ((state, upstream), (to_causal(state), {"attention_head_dim": 12, "_class_name": "x"})):
        model = wan_from_state_dict(sd, config)
        assert model.dtype == torch.bfloat16 and model.config.num_attention_heads == 2 and model.config.text_len == 512
    settings = wan_from_state_dict(state, {**HEADS, "local_attn_size": 9, "sink_size": 2}).config
    assert (settings.local_attn_size, settings.sink_size) == (9, 2)
    assert WanConfig.of(settings.to_dict()) == settings


def without(state: dict, key: str) -> dict:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (lambda sd: without(sd, "proj_out.bias"), {}, r"got no proj_out\.bias"),
        (lambda sd: without(to_causal(sd), "head.modulation"), {}, "got no scale_shift_table"),
        (
            lambda sd: {**sd, "blocks.0.attn2.add_k_proj.weight": torch.zeros(1)},
            {},
            r"unknown blocks\.0\.attn2\.add_k_proj",
        ),
        (lambda sd: {**to_causal(sd), "img_emb.proj.0.weight": torch.zeros(1)}, {}, r"unknown img_emb\.proj"),
        (
            lambda sd: {**sd, "proj_out.weight": torch.zeros(5, 24)},
            {},
            r"proj_out\.weight of shape \(5, 24\) instead of",
        ),
        (lambda sd: {**sd, "patch_embedding.weight": torch.zeros(())}, {}, "instead of"),
        (lambda sd: without(sd, "blocks.1.ffn.net.2.bias"), {}, r"got no blocks\.1\.ffn\.net\.2\.bias"),
        (lambda sd: sd, {"num_layers": 1}, r"unknown blocks\.1\."),
        (lambda sd: sd, {"num_layers": 3}, r"got no blocks\.2\."),
        (lambda sd: sd, {"ffn_dim": "32"}, "ffn_dim: expected int, got '32'"),
        (lambda sd: sd, {"widths": 3}, r"\['widths'\]"),
        (lambda sd: sd, {"dim": 25}, "dim: expected a multiple of num_heads 2, got 25"),
        (lambda sd: sd, {"dim": 48}, "instead of"),
        (lambda sd: sd, {"model_type": "i2v"}, "model_type: expected 't2v'"),
        (lambda sd: sd, {"added_kv_proj_dim": 24}, "added_kv_proj_dim: expected None"),
        (lambda sd: sd, {"qk_norm": False, "dim": 24}, "qk_norm: expected true"),
        (lambda sd: sd, {"patch_size": [2, 2, 2]}, r"patch_size: expected \(1, rows, columns\)"),
        (lambda sd: sd, {"num_heads": 0}, "num_attention_heads: expected at least 1"),
        (lambda sd: sd, {"num_heads": 12}, "attention_head_dim: expected an even number of at least 6"),
        (lambda sd: {}, {}, "got nothing"),
        (lambda sd: {"generator": {"step": 3}}, {}, "expected tensors"),
    ],
)
def test_mismatched_weights_and_configs_are_refused(change: Callable, config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        wan_from_state_dict(change(wan().state_dict()), {**HEADS, **config})
    assert "\n" not in str(caught.value)


def test_missing_head_counts_are_required_in_the_config() -> None:
    with pytest.raises(ValueError, match="num_heads: expected it in the config, since a width of 24"):
        wan_from_state_dict(wan().state_dict())


@torch.no_grad()
def test_a_flow_map_loads_where_the_config_says_how_its_two_times_mix() -> None:
    model = wan(gate_value=0.25, deltatime_type="t-r")
    given = torch.randn(1, 3, 1, *GRID), torch.full((1, 1), 500.0)
    loaded = wan_from_state_dict(model.state_dict(), {**model.config.to_dict()})
    until = torch.full((1, 1), 100.0)
    assert torch.equal(loaded(*given, loaded.read(text()), until=until), model(*given, model.read(text()), until=until))
    with pytest.raises(ValueError, match=r"unknown condition_embedder\.delta_embedder"):
        wan_from_state_dict(model.state_dict(), {"num_attention_heads": 2})

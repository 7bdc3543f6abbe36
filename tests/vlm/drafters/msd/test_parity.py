"""MSD's slots and features equal the public code's on the same weights, read by their published names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec.vlm
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.msd import Msd
from tests.parity import case

CLOSE = dict(atol=2e-5, rtol=1e-4)
CONFIG = dict(
    model_type="llava",
    vocab_size=128,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    hidden_act="silu",
    rms_norm_eps=1e-5,
    pad_token_id=0,
)


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("vlm/msd_llava_small")


@pytest.fixture(scope="module")
def drafter(public: dict[str, Tensor]) -> Msd:
    weights = {name.removeprefix("weight."): value for name, value in public.items() if name.startswith("weight.")}
    return mmspec.vlm.drafter_from_state_dict("msd", weights, CONFIG)


def test_slots_and_features_match_the_public_code(drafter: Msd, public: dict[str, Tensor]) -> None:
    picture = public["visual_mask_shifted"].long()
    slots = drafter.read(PromptView(public["inputs_embeds_shifted"], public["target_hidden"], picture))
    torch.testing.assert_close(slots.attend, public["layer_input"], **CLOSE)
    torch.testing.assert_close(slots.carry, public["layer_input"], **CLOSE)
    assert torch.equal(slots.position, public["positions"])
    assert slots.count.tolist() == [21] and slots.next_position.tolist() == [21]
    rotary = drafter.layer.rotary(21, torch.device("cpu"), torch.float32)[slots.position]
    out = drafter(slots.attend, slots.carry, rotary, SlotCache(1, 32), None)
    torch.testing.assert_close(out, public["draft_hidden"], **CLOSE)


def test_the_picture_is_found_where_the_public_code_puts_it(drafter: Msd, public: dict[str, Tensor]) -> None:
    """From ids: the sentinel's place expanded, then shifted."""
    ids, count = public["ids"][0], int(public["visual_mask_shifted"].sum())
    at = ids.tolist().index(-200)
    expanded = torch.cat([ids[:at], torch.full((count,), -200), ids[at + 1 : -1]])[None]
    embeds, hidden = public["inputs_embeds"], public["target_hidden"]
    view = PromptView.of(expanded, embeds, hidden, (-200,), count)
    assert torch.equal(view.picture > 0, public["visual_mask_shifted"][:, :-1])
    torch.testing.assert_close(drafter.read(view).attend, public["layer_input"][:, :-1], **CLOSE)


def test_qwen_files_norm_their_input_and_have_biases_and_groups() -> None:
    shapes = {"embed_tokens.weight": (40, 24), "fc.weight": (24, 48), "fc.bias": (24,)}
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    for x, rows in (("q", 24), ("k", 8), ("v", 8)):
        shapes |= {f"{attention}{x}_proj.weight": (rows, 24), f"{attention}{x}_proj.bias": (rows,)}
    shapes |= {f"{attention}o_proj.weight": (24, 24), f"{mlp}down_proj.weight": (24, 20)}
    shapes |= {f"{mlp}{x}_proj.weight": (20, 24) for x in ("gate", "up")}
    shapes |= {f"layers.0.{x}_layernorm.weight": (24,) for x in ("input", "post_attention")}
    state = {name: torch.randn(shape) for name, shape in shapes.items()}
    config = dict(
        model_type="qwen2_vl",
        vocab_size=40,
        hidden_size=24,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=1,
        hidden_act="silu",
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]},
        tie_word_embeddings=False,
    )
    drafter = mmspec.vlm.drafter_from_state_dict("msd", state, config)
    assert drafter.config.input_norm and drafter.config.qkv_bias and drafter.config.num_key_value_heads == 1
    assert torch.equal(drafter.norm.weight, state["layers.0.input_layernorm.weight"])
    slots = drafter.read(PromptView(*torch.randn(2, 1, 5, 24), torch.tensor([[0, 1, 1, 0, 0]])))
    norm = drafter.norm.weight * slots.carry * (slots.carry**2).mean(-1, keepdim=True).add(1e-6).rsqrt()
    torch.testing.assert_close(slots.attend, norm)
    del state["layers.0.input_layernorm.weight"]
    with pytest.raises(ValueError, match=r"missing \['layers.0.input_layernorm.weight'\]"):
        mmspec.vlm.drafter_from_state_dict("msd", state, config)
    with pytest.raises(ValueError, match="unknown .*q_proj.bias"):
        mmspec.vlm.drafter_from_state_dict("msd", state, dict(config, model_type="llava"))

"""LANTERN's drafters load by their published names at any size; what does not fit is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.eagle.image_eagle import ImageEagle
from mmspec.imagegen.eagle.loading import drafter_from_state_dict
from tests.imagegen.eagle.small import CHAIN
from tests.imagegen.tiny import DIM, TinyModel, generate


def random_state(groups: int = 4, **other: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Random tensors under the published names, and their config."""
    config = {
        "hidden_size": DIM,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": groups,
        "vocab_size": 16,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        **other,
    }
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    shapes = {
        "embed_tokens.weight": (16, DIM),
        **{f"{attention}{x}_proj.weight": (DIM * (groups if x in "kv" else 4) // 4, DIM) for x in "qkvo"},
        **{f"{mlp}{x}_proj.weight": (48, DIM) for x in ("gate", "up")},
        f"{mlp}down_proj.weight": (DIM, 48),
        "layers.0.post_attention_layernorm.weight": (DIM,),
        "fc.weight": (DIM, 2 * DIM),
        "fc.bias": (DIM,),
    }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}, config


def published_state(drafter: ImageEagle) -> dict[str, Tensor]:
    """The drafter's tensors under the published names, with adjacent channels of queries and keys to be turned."""
    own, layer = drafter.state_dict(), drafter.config.layer()
    order = torch.arange(layer.dim).view(2, -1).T.flatten()
    stacked = own["layer.qkv.weight"].unflatten(0, (-1, layer.dim))
    q, k, v = stacked.split((layer.num_attention_heads, layer.groups, layer.groups))
    gate, up = own["layer.gate_up.weight"].chunk(2)
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    return {
        "embed_tokens.weight": own["embedding.weight"],
        f"{attention}q_proj.weight": q[:, order].flatten(0, 1),
        f"{attention}k_proj.weight": k[:, order].flatten(0, 1),
        f"{attention}v_proj.weight": v.flatten(0, 1),
        f"{attention}o_proj.weight": own["layer.out.weight"],
        f"{mlp}gate_proj.weight": gate,
        f"{mlp}up_proj.weight": up,
        f"{mlp}down_proj.weight": own["layer.down.weight"],
        "layers.0.post_attention_layernorm.weight": own["layer.norm.weight"],
        "fc.weight": own["fc.weight"],
        "fc.bias": own["fc.bias"],
    }


@pytest.mark.parametrize("groups", [4, 2])
def test_names_go_round(groups: int) -> None:
    state, config = random_state(groups)
    back = published_state(drafter_from_state_dict(state, config))
    assert set(back) == set(state) and all(torch.equal(back[name], state[name]) for name in state)


def test_a_published_drafter_drafts() -> None:
    model = TinyModel()
    drafter = drafter_from_state_dict(*random_state(), target=model).with_shape(CHAIN)
    plain = generate(model, [0, 1], temperature=0, guidance_scale=2.0)
    assert torch.equal(generate(model, [0, 1], drafter, temperature=0, guidance_scale=2.0).tokens, plain.tokens)


def refusals() -> dict[str, tuple[dict[str, Tensor], dict[str, Any], object, str]]:
    state, config = random_state()
    fewer = {name: value for name, value in state.items() if "up_proj" not in name}
    wide = state | {"layers.0.self_attn.q_proj.weight": torch.zeros(DIM + 1, DIM)}
    return {
        "missing": (fewer, config, None, "missing .'layers.0.mlp.up_proj.weight'"),
        "unknown": (state | {"lm_head.weight": torch.zeros(1)}, config, None, "unknown .'lm_head.weight'"),
        "shape": (wide, config, None, "expected shape"),
        "resolution": (state, config | {"input_type": "t2i"}, TinyModel(), "expected positions 16"),
        "input_type": (state, config | {"input_type": "video"}, None, "input_type: expected one of c2i"),
        "width": (state, config, TinyModel(codes=17), "expected vocab_size 17"),
        "field": (state, {}, None, "got none for hidden_size"),
    }


@pytest.mark.parametrize("case", list(refusals()))
def test_invalid_published_files_are_refused(case: str) -> None:
    state, config, target, message = refusals()[case]
    with pytest.raises(ValueError, match=message):
        drafter_from_state_dict(state, config, target)

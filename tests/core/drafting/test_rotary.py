"""Scaled positions of drafter layers: the tables of transformers, the formulas written out, and refusals."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import mmspec
from mmspec.core.drafting.layer import LayerConfig
from mmspec.core.drafting.rotary import apply_rotary, rotary
from mmspec.io.pretrained import rotary_fields
from tests.vlm.drafters.dflash.test_attention import random_state, speculators, zlab
from tests.vlm.drafters.eagle3.reference import LLAMA3, YARN, rotated

LINEAR = {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0}
PLAIN = {"rope_type": "default", "rope_theta": 5e3}
DIM, COUNT = 16, 300
each = pytest.mark.parametrize("rope", (PLAIN, LINEAR, LLAMA3, YARN, {**YARN, "attention_factor": 1.5}))


def table(rope: dict) -> torch.Tensor:
    fields = rotary_fields({"rope_parameters": rope}, ("default", "linear", "llama3", "yarn"))
    theta, scaling = fields["rope_theta"], fields["rope_scaling"]
    return rotary(COUNT, DIM, theta, torch.device("cpu"), torch.float32, scaling)


@each
def test_tables_are_those_of_transformers(rope: dict) -> None:
    config = hf.LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=512,
        rope_parameters=dict(rope),
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(COUNT)[None])
    own = table(rope)
    torch.testing.assert_close(own[:, 0], cos[0], atol=5e-5, rtol=1e-4)
    torch.testing.assert_close(own[:, 1].abs(), sin[0].abs(), atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("rope", (PLAIN, LLAMA3, YARN))
def test_heads_turn_by_the_formulas(rope: dict) -> None:
    x = torch.randn(1, COUNT, 2, DIM, generator=torch.Generator().manual_seed(0))
    own = apply_rotary(x, table(rope)[None])[0].transpose(0, 1)
    torch.testing.assert_close(own, rotated(x[0].transpose(0, 1), torch.arange(COUNT), rope), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaling", ({"rope_type": "dynamic", "factor": 2.0}, {"factor": 2.0}, {"rope_type": "yarn"}))
def test_positions_that_no_layer_turns_are_refused(scaling: dict) -> None:
    with pytest.raises(ValueError, match="rope_parameters: expected"):
        LayerConfig(32, 48, 4, rope_scaling=scaling)


@pytest.mark.parametrize("form", (zlab, speculators))
def test_a_drafter_of_blocks_turns_scaled_positions(form) -> None:
    config = form()
    layer = config.get("transformer_layer_config", config)
    layer |= {"rope_scaling": LLAMA3}
    drafter = mmspec.vlm.drafter_from_state_dict("dflash", random_state(), config)
    dim = drafter.config.layer().dim
    expected = rotary(COUNT, dim, LLAMA3["rope_theta"], torch.device("cpu"), torch.float32, drafter.config.rope_scaling)
    assert drafter.config.rope_scaling["rope_type"] == "llama3"
    assert torch.equal(drafter.layer.rotary(COUNT, torch.device("cpu"), torch.float32), expected)


def test_sections_make_no_difference_to_a_drafter_of_speculators() -> None:
    config = speculators()
    config["transformer_layer_config"] |= {"rope_parameters": {"mrope_section": [1, 1, 2], "rope_theta": 1e6}}
    drafter = mmspec.vlm.drafter_from_state_dict("dflash", random_state(), config)
    assert (drafter.config.rope_theta, drafter.config.rope_scaling) == (1e6, {})

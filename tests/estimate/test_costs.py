"""Costs of models against hand counts, instantiated tiny models, their real caches and torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
    LlamaConfig,
    LlavaConfig,
    Qwen3_5Config,
    Qwen3MoeConfig,
)

from mmspec.estimate.counting import count_work
from mmspec.estimate.model_cost import Experts, cost_of_config
from mmspec.estimate.named import cost_of_values, named_cost
from mmspec.estimate.published import CONFIGS
from mmspec.estimate.work import product
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer

TEXT = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 96}
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 24,
    "patch_size": 6,
    "projection_dim": 16,
}


def llama(**more: object) -> LlamaConfig:
    return LlamaConfig(**TEXT, num_key_value_heads=2, head_dim=8, **more)


def llava() -> LlavaConfig:
    return LlavaConfig(text_config={"model_type": "llama", **TEXT}, vision_config=VISION, image_seq_length=16)


def hybrid() -> Qwen3_5Config:
    text = {
        **TEXT,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 4,
    }
    return Qwen3_5Config(text_config=text, vision_config=vision)


def experts() -> Qwen3MoeConfig:
    return Qwen3MoeConfig(
        **TEXT, num_key_value_heads=2, head_dim=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24
    )


CONFIGURATIONS = {
    "llama": llama,
    "tied": lambda: llama(tie_word_embeddings=True),
    "llava": llava,
    "hybrid": hybrid,
    "experts": experts,
}


def built(config: object) -> torch.nn.Module:
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    return kind.from_config(config).eval()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_weight_bytes_are_those_of_the_parameters(name: str) -> None:
    config = CONFIGURATIONS[name]()
    real = sum(parameter.numel() * parameter.element_size() for parameter in built(config).parameters())
    assert cost_of_config(config).weight_bytes("float32") == real
    assert cost_of_config(config).weight_bytes("bfloat16") == real / 2


@pytest.mark.parametrize("name", ["llama", "llava", "hybrid"])
@torch.no_grad()
def test_cache_bytes_are_those_of_the_real_cache(name: str) -> None:
    config, tokens = CONFIGURATIONS[name](), 13
    decoder = built(config).get_decoder()
    past = DynamicCache(config=decoder.config)
    decoder(input_ids=torch.zeros(1, tokens, dtype=torch.long), past_key_values=past, use_cache=True)
    real = 0
    for layer in past.layers:
        for held in vars(layer).values():
            parts = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else [held]
            real += sum(part.numel() * 4 for part in parts if isinstance(part, torch.Tensor) and part.dim() > 2)
    assert cost_of_config(config).kv_bytes(tokens, "float32") == real


def test_cache_and_attention_of_a_llama_by_hand() -> None:
    cost = cost_of_config(llama())
    assert cost.kept == 3 * 2 * 2 * 8  # layers, keys and values, heads, size
    assert cost.attention == 3 * 4 * 4 * 8  # layers, two products of two operations, heads, size
    assert cost.kv_bytes(10, "bfloat16") == 10 * 96 * 2


@pytest.mark.parametrize("name", ["llama", "llava"])
@torch.no_grad()
def test_operations_are_those_of_torchs_counter(name: str) -> None:
    config, rows = CONFIGURATIONS[name](), 7
    model = built(config)
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    with FlopCounterMode(display=False) as counter:
        head(decoder(input_ids=torch.zeros(1, rows, dtype=torch.long), use_cache=False).last_hidden_state)
    cost = cost_of_config(config)
    own = cost.pass_work(rows, 0, "float32")
    # without the products of queries with keys, which kernels of a processor may count in full or by half
    linear = 2 * rows * (sum(a * b * n for (a, b), n in cost.products.items()) + cost.head[0] * cost.head[1])
    assert sum(2 * r * i * c * n for (r, i, c), n in own.products.items()) == linear
    assert linear <= counter.get_total_flops() <= linear + 2 * own.flops


def test_a_picture_of_a_llava_by_hand() -> None:
    cost, patches = cost_of_config(llava()), 16
    layer = 4 * 16 * 16 + 2 * 16 * 40
    linear = 2 * patches * (2 * layer + 3 * 36 * 16 + 16 * 32 + 32 * 32)
    assert cost.picture_rows == 16
    assert cost.picture.total_flops == linear + 4 * patches * 16 * 2 * patches
    assert cost_of_config(llama()).picture_rows == 0


def test_experts_are_read_as_far_as_tokens_choose_them() -> None:
    own = Experts(2, 8, 2, ((32, 48), (24, 32)))
    assert own.active(1) == pytest.approx(2) and own.active(1000) == pytest.approx(8)
    assert own.work(1).weight_bytes(1) == pytest.approx(2 * 2 * (32 * 48 + 24 * 32))
    one, several = own.work(1), own.work(16)
    assert several.total_flops == pytest.approx(16 * one.total_flops)
    assert several.weight_bytes(1) < 4.1 * one.weight_bytes(1)
    cost = cost_of_config(experts())
    assert cost.experts == Experts(3, 8, 2, ((32, 48), (24, 32)))
    dense = cost.parameters - 3 * 8 * (32 * 48 + 24 * 32)
    assert cost.pass_work(1, 0, "float32").weight_bytes(1) < dense + 3 * 2 * (32 * 48 + 24 * 32)


def test_a_model_of_image_codes_is_counted_with_guidance() -> None:
    values = {
        "dim": 32,
        "n_layer": 2,
        "n_head": 4,
        "multiple_of": 8,
        "vocab_size": 64,
        "num_classes": 5,
        "block_size": 16,
    }
    cost = cost_of_values(values, "codes")
    assert cost.parameters == sum(parameter.numel() for parameter in Transformer(GPTConfig(**values)).parameters())
    assert cost.branches == 2 and cost.kv_bytes(1, "float32") == 2 * 4 * 2 * 2 * 32
    assert cost_of_values(values, "codes", guided=False).kv_bytes(1, "float32") == 4 * 2 * 2 * 32


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llava-1.5-7b", 7_063_427_072), ("llamagen-xl", 777_678_080), ("llamagen-3b", 3_096_659_200)],
)
def test_published_models_have_their_published_parameters(name: str, parameters: int) -> None:
    assert name in CONFIGS and named_cost(name).parameters == parameters


def test_a_linear_layer_is_one_product() -> None:
    layer, rows = torch.nn.Linear(8, 24), torch.zeros(5, 8)
    work = count_work(lambda: torch.nn.functional.linear(rows, layer.weight))
    assert work.products == product(5, 8, 24).products and work.total_flops == 2 * 5 * 8 * 24 and work.calls == 1
    assert (2 * work + work).total_flops == 3 * work.total_flops and work.weight_bytes(4) == 4 * 8 * 24

"""Folders of MTP layers of the `speculators` library: logits as its own layer gives them, and what is refused."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import save_file
from torch import Tensor, nn

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.drafters.mtp import Mtp
from tests.vlm.drafters.mtp.test_drafter import _EXPERTS, _LINEAR, _SIZES, VOCAB, qwen_dense, qwen_next
from tests.vlm.tiny import liven

WIDTH, CLOSE = 32, dict(atol=1e-4, rtol=1e-4)


def qwen3() -> nn.Module:
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**_SIZES, num_hidden_layers=2))


def qwen_experts() -> nn.Module:
    return hf.Qwen3_5MoeForCausalLM(hf.Qwen3_5MoeTextConfig(**_SIZES, **_LINEAR, **_EXPERTS))


TARGETS = {"qwen3": qwen3, "qwen3_next": qwen_next, "qwen3_5_text": qwen_dense, "qwen3_5_moe_text": qwen_experts}


@cache
def target(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TARGETS[name]().eval().requires_grad_(False)
        liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    assert model.config.model_type == name
    return model


def full_attention_layer(model: nn.Module) -> nn.Module:
    """A layer of the target's class as the library builds it: as the last of full attention."""
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"]
    index = max(n for n, kind in enumerate(kinds) if kind == "full_attention")
    return type(model.model.layers[index])(model.config, index).eval().requires_grad_(False)


def tensors(name: str) -> dict[str, Tensor]:
    """A layer as the library names its tensors, experts packed."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        layer = full_attention_layer(target(name))
        state = {key: 0.2 * torch.randn_like(value) for key, value in layer.state_dict().items()}
        state = {key: value + ("norm" in key) for key, value in state.items()}
        norms = {f"{part}_layernorm.weight": 0.9 + 0.2 * torch.randn(WIDTH) for part in ("hidden", "token", "final")}
        own = norms | {"input_proj.weight": 0.2 * torch.randn(WIDTH, 2 * WIDTH)}
    return {f"mtp_layers.0.{key}": value for key, value in (state | own).items()}


def config_of(name: str, **changes: object) -> dict:
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": json.loads(target(name).config.to_json_string()),
        "speculators_config": {"algorithm": "mtp", "proposal_methods": [proposal]},
    } | changes


def load(folder: Path, name: str, model: nn.Module | None = None, **changes: object) -> Mtp:
    save_file(tensors(name), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_of(name, **changes)))
    return mmspec.vlm.load_drafter(folder, target=model or target(name))


def library_outputs(name: str, state: dict[str, Tensor], embeds: Tensor, hidden: Tensor) -> Tensor:
    """Normed outputs [1, n, H] of one causal pass, from the description of the library's layer."""
    model = target(name)
    layer, part = (
        full_attention_layer(model),
        {key.removeprefix("mtp_layers.0."): value for key, value in state.items()},
    )
    outside = ("input_proj", "hidden_layernorm", "token_layernorm", "final_layernorm")
    layer.load_state_dict({key: value for key, value in part.items() if not key.startswith(outside)})

    def normed(x: Tensor, which: str) -> Tensor:
        norm = type(model.model.norm)(WIDTH, eps=model.config.rms_norm_eps)
        norm.weight = nn.Parameter(part[f"{which}_layernorm.weight"])
        return norm(x)

    read = torch.cat([normed(embeds, "token"), normed(hidden, "hidden")], -1) @ part["input_proj.weight"].T
    count = read.shape[1]
    position = torch.arange(1, count + 1)[None]
    causal = torch.zeros(count, count).masked_fill(torch.ones(count, count).triu(1) > 0, -torch.inf)[None, None]
    turned = model.model.rotary_emb(read, position)
    out = layer(read, position_embeddings=turned, attention_mask=causal, position_ids=position)
    return normed(out[0] if isinstance(out, tuple) else out, "final")


@torch.no_grad()
@pytest.mark.parametrize("name", TARGETS)
def test_logits_are_those_of_the_librarys_layer(name: str, tmp_path: Path) -> None:
    """Behind the target's states, and a step further behind the layer's own output."""
    drafter, model, state = load(tmp_path, name), target(name), tensors(name)
    ids = torch.randint(1, VOCAB, (1, 9), generator=torch.Generator().manual_seed(5))
    embeds, states = model.get_input_embeddings()(ids), model.model(ids).last_hidden_state
    hidden, cache = states[:, :-2], SlotCache(1, 0)
    place = torch.arange(1, 8)[None]
    first = drafter(drafter.fuse(embeds[:, 1:8], hidden), place, cache, None)
    expected = library_outputs(name, state, embeds[:, 1:8], hidden)
    head = model.get_output_embeddings()
    torch.testing.assert_close(drafter.logits(first, 1, head), head(expected), **CLOSE)
    cache.advance(7)
    second = drafter(drafter.fuse(embeds[:, 8:9], first[:, -1:]), place[:, -1:] + 1, cache, None)
    hidden = torch.cat([states[:, :-2], expected[:, -1:]], 1)
    further = library_outputs(name, state, embeds[:, 1:9], hidden)[:, -1:]
    torch.testing.assert_close(drafter.logits(second, 2, head), head(further), **CLOSE)


@pytest.mark.parametrize("name", ("qwen3", "qwen3_5_moe_text"))
def test_answers_stay_the_targets(name: str, tmp_path: Path) -> None:
    drafter = load(tmp_path, name).with_shape(Chain(FixedLength(3)))
    inputs = dict(input_ids=torch.tensor([[3, 9, 4, 7]]), max_new_tokens=12, do_sample=False)
    assert torch.equal(mmspec.generate(target(name), drafter=drafter, **inputs), target(name).generate(**inputs))


def test_a_layer_missing_in_the_target_reports_one_error(tmp_path: Path) -> None:
    other = config_of("qwen3")["transformer_layer_config"] | {"model_type": "qwen2"}
    wider = config_of("qwen3")["transformer_layer_config"] | {"num_key_value_heads": 4}
    for model, changes, message in (
        (target("qwen3"), dict(num_nextn_predict_layers=2), "num_nextn_predict_layers: expected one MTP layer"),
        (
            target("qwen3"),
            dict(transformer_layer_config=other),
            "expected model_type 'qwen3' as in the target, got 'qwen2'",
        ),
        (target("qwen3"), dict(transformer_layer_config=wider), "expected num_key_value_heads 2"),
        (target("qwen3_5_text"), {}, "expected model_type 'qwen3_5_text' as in the target, got 'qwen3'"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            load(tmp_path, "qwen3", model, **changes)
        assert "\n" not in str(caught.value)
    load(tmp_path, "qwen3")
    with pytest.raises(ValueError, match="target: expected the model whose checkpoint this is"):
        mmspec.vlm.load_drafter(tmp_path)


def test_a_kind_that_is_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="speculators_model_type: expected one of dflash, .*mtp.*, got 'other'"):
        load(tmp_path, "qwen3", speculators_model_type="other")

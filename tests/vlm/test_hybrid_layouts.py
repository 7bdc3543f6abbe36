"""Hybrid decoders in the layouts of published checkpoints: recurrent and attention layers in turns, behind each other.

No config has a padding id, and the vocabularies are so small that trials draw token 0.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packaging.version import parse
from torch import nn

import mmspec
from mmspec.vlm.admission import take_apart
from mmspec.vlm.proof.receptive_field import check_receptive_field
from mmspec.vlm.proof.trial import TrialMismatch

BASE = dict(
    vocab_size=99,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=None,
    eos_token_id=None,
    bos_token_id=None,
)
MAMBA = dict(
    mamba_n_heads=4,
    mamba_d_head="auto",
    mamba_expand=2,
    mamba_d_state=16,
    mamba_n_groups=1,
    mamba_d_conv=4,
    mamba_chunk_size=8,
)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
NEMOTRON = dict(
    mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16, n_groups=1, conv_kernel=4, chunk_size=8, head_dim=8
)
JAMBA = dict(num_experts=1, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=4)
ZAMBA = dict(
    mamba_d_state=16,
    n_mamba_heads=8,
    mamba_ngroups=1,
    chunk_size=8,
    num_mem_blocks=1,
    use_shared_attention_adapter=False,
)


def names(layout: str, **words: str) -> list[str]:
    return [words[letter] for letter in layout]


def bamba(layout: str) -> dict[str, Any]:
    return {"attn_layer_indices": [n for n, letter in enumerate(layout) if letter == "a"], **MAMBA}


def typed(layout: str, recurrent: str, attention: str) -> dict[str, Any]:
    return {"layer_types": names(layout, r=recurrent, a=attention)}


# name of the class -> its fields for a layout of recurrent (r) and attention (a) layers
CLASSES = {
    "Bamba": bamba,
    "GraniteMoeHybrid": lambda layout: (
        typed(layout, "mamba", "attention") | dict(shared_intermediate_size=32, num_local_experts=0, **MAMBA)
    ),
    "NemotronH": lambda layout: {"hybrid_override_pattern": "".join(names(layout, r="M", a="*")), **NEMOTRON},
    "Jamba": lambda layout: {"attn_layer_period": len(layout), "attn_layer_offset": layout.index("a"), **JAMBA},
    "Qwen3Next": lambda layout: {
        **typed(layout, "linear_attention", "full_attention"),
        "head_dim": 8,
        **DELTA,
        **EXPERTS,
    },
    "OlmoHybrid": lambda layout: typed(layout, "linear_attention", "full_attention") | DELTA,
    "Qwen3_5Text": lambda layout: typed(layout, "linear_attention", "full_attention") | DELTA | {"head_dim": 8},
    "Lfm2": lambda layout: typed(layout, "conv", "full_attention"),
    "FalconH1": lambda layout: {"mamba_d_ssm": 64, **MAMBA},
    "Zamba2": lambda layout: {"layers_block_type": names(layout, r="mamba", a="hybrid"), **ZAMBA},
}
LAYOUT = "rraarra"
# before these versions, such a class has a cache of its own or takes no masks by layer
SINCE = {"OlmoHybrid": "5.15", "Zamba2": "5.15"}


def hybrid(name: str, layout: str) -> nn.Module:
    config = getattr(transformers, f"{name}Config", None)
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM", None)
    if config is None or model is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    torch.manual_seed(0)
    return model(config(**BASE, num_hidden_layers=len(layout), **CLASSES[name](layout))).eval()


@pytest.mark.parametrize("name", CLASSES)
def test_recurrent_layers_behind_attention_are_served(name: str) -> None:
    model = hybrid(name, LAYOUT)
    if parse(transformers.__version__) < parse(SINCE.get(name, "5.13")):
        with pytest.raises(ValueError, match="^model: expected .*; decode it with model.generate"):
            mmspec.generate(model, input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=4)
        return
    for ids in (torch.arange(2, 40, 4)[None], torch.tensor([[5, 0, 7, 5, 0, 7, 5]]), torch.arange(3, 33).view(2, 15)):
        inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
        settings = dict(max_new_tokens=10, do_sample=False)
        plain = model.generate(**inputs, **settings)
        for drafter in (None, "lookup:longest=2"):
            assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **settings), plain)


@pytest.mark.parametrize("name", ["Bamba", "Qwen3Next"])
def test_the_proof_still_finds_a_layer_that_sees_less_than_its_config_says(name: str) -> None:
    model = hybrid(name, "rar")
    parts = take_apart(model)
    with torch.no_grad():
        check_receptive_field(parts, 20)
    attention = next(module for module in model.modules() if type(module).__name__ == f"{name}Attention")
    cut = attention.forward

    def near(*args: Any, **kwargs: Any) -> Any:
        kwargs["attention_mask"] = kwargs["attention_mask"].clone()
        kwargs["attention_mask"][..., :-8] = -torch.inf
        return cut(*args, **kwargs)

    attention.forward = near
    with torch.no_grad(), pytest.raises(TrialMismatch, match="layer 1 that sees 7 of 20 earlier tokens"):
        check_receptive_field(parts, 20)


@pytest.mark.parametrize("name", ["Qwen3", "Qwen3Next", "GraniteMoeHybrid"])
def test_trials_do_not_depend_on_a_padding_id(name: str) -> None:
    """A prompt may hold any token where the model names no padding id, at the trial and at the user's call."""
    fields = {} if name == "Qwen3" else CLASSES[name]("ra")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**BASE, num_hidden_layers=2, **fields)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    ids = torch.tensor([[0, 5, 0, 7, 0, 9]])
    plain = model.generate(ids, max_new_tokens=10, do_sample=False)
    out = mmspec.generate(model, drafter="lookup:longest=2", input_ids=ids, max_new_tokens=10, do_sample=False)
    assert torch.equal(out, plain)


def test_a_class_with_a_cache_of_its_own_is_refused_in_a_sentence() -> None:
    model = transformers.MiniMaxForCausalLM
    config = transformers.MiniMaxConfig(
        **BASE,
        num_hidden_layers=3,
        head_dim=8,
        num_local_experts=2,
        block_size=4,
        **typed("rar", "linear_attention", "full_attention"),
    )
    with pytest.raises(ValueError, match="model: expected recurrent layers that keep their states in the cache"):
        mmspec.generate(model(config).eval(), input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=4)

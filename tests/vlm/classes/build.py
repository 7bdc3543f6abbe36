"""Tiny random models of any class, by its name."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf
from torch import nn

from tests.vlm.classes.shrink import BOS, PAD, shrink

QUERY_OR_KEY = ("q_proj", "k_proj", "qkv", "query", "key", "c_attn", "q_a_proj", "q_b_proj", "kv_")


def config_of(name: str) -> hf.PreTrainedConfig:
    """The class's default config, made tiny; a test of a class that this version of transformers lacks is skipped."""
    if not hasattr(hf, name):
        pytest.skip(f"transformers {hf.__version__} has no {name}")
    made = getattr(hf, name).config_class
    return made.from_dict(shrink(made().to_dict()))


def model_of(name: str, config: hf.PreTrainedConfig) -> nn.Module:
    """A model of the class with lively random weights: fp32, on the CPU, always the same."""
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config(decoder=True)):
        if hasattr(part, "is_decoder"):
            part.is_decoder = True
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(hf, name)(config).eval()
        liven(model)
    model.generation_config = hf.GenerationConfig(pad_token_id=PAD, bos_token_id=BOS)
    return model.float().requires_grad_(False)


@torch.no_grad()
def liven(model: nn.Module) -> None:
    """Scales random weights so that what is generated varies with the whole context and near-ties are rare."""
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    head = model.get_output_embeddings()
    for name, weight in model.named_parameters():
        if "gate" in name and weight.dim() < 2 and not weight.any():
            weight.fill_(0.7)  # gates that start closed
        if weight.dim() < 2 or not weight.is_floating_point() or "A_log" in name:
            continue
        if weight in tables:
            weight.normal_(0, 1.0)
        elif head is not None and weight is getattr(head, "weight", None):
            weight.normal_(0, 2.0)
        else:
            gain = 3.0 if any(part in name for part in QUERY_OR_KEY) else 1.5
            weight.normal_(0, gain / weight[0].numel() ** 0.5)


def skip_broken(model: nn.Module) -> None:
    """Skip the test if the model's own `generate` fails, as that of Llama 4 with pictures does in transformers 5.24.0."""
    try:
        model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=1)
    except AttributeError as error:
        pytest.skip(f"transformers {hf.__version__} cannot run {type(model).__name__}: {error}")

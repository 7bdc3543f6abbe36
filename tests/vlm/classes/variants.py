"""Forms of a class's tiny config that change what a token may see: small windows, RoPE that depends on the length."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import transformers as hf
from torch import nn

from tests.vlm.classes.build import config_of

WINDOW, SWITCH = 8, 16  # tokens a window holds; the length at which RoPE changes
WINDOWS = (
    "sliding_window",
    "attention_chunk_size",
    "keep_window_size",
    "attention_window_size",
    "local_attention",
    "local_attention_window_len",
    "sliding_window_size",
)


def variants(name: str) -> Iterator[tuple[str, hf.PreTrainedConfig]]:
    """Every variant the class's config has fields for, the default one first."""
    yield "default", config_of(name)
    for label, change in _CHANGES.items():
        config = copy.deepcopy(config_of(name))
        text = config.get_text_config(decoder=True)
        if change(text, config, name):
            yield label, config


def _windowed(text: hf.PreTrainedConfig, config: hf.PreTrainedConfig, name: str) -> bool:
    found = False
    if getattr(text, "model_type", "") == "gpt_neo":
        text.window_size, found = WINDOW // 2, True
    for field in WINDOWS:
        if hasattr(text, field):
            setattr(text, field, WINDOW)
            found = True
    if hasattr(text, "use_sliding_window"):
        text.use_sliding_window = True
        text.max_window_layers = 1
    kinds = getattr(text, "layer_types", None)
    if found and kinds and set(kinds) == {"full_attention"} and hasattr(text, "sliding_window"):
        text.layer_types = [("full_attention", "sliding_attention")[n % 2] for n in range(len(kinds))]
    return found


def _tempered(text: hf.PreTrainedConfig, config: hf.PreTrainedConfig, name: str) -> bool:
    """Queries scaled by their slot from the fourth on."""
    if not hasattr(text, "floor_scale"):
        return False
    text.floor_scale, text.attn_temperature_tuning = 4, True
    return True


def _alibi(text: hf.PreTrainedConfig, config: hf.PreTrainedConfig, name: str) -> bool:
    if not hasattr(text, "alibi"):
        return False
    text.alibi = True
    return True


def _dynamic(text: hf.PreTrainedConfig, config: hf.PreTrainedConfig, name: str) -> bool:
    return _with_rope(text, config, name, lambda size: {"rope_type": "dynamic"})


def _longrope(text: hf.PreTrainedConfig, config: hf.PreTrainedConfig, name: str) -> bool:
    changed = _with_rope(text, config, name, _long_factors)
    if changed:
        text.max_position_embeddings = 4 * SWITCH
    if changed and text.model_type == "phimoe":
        text.rope_parameters |= {"short_mscale": 1.1, "long_mscale": 1.2}
    return changed


def _long_factors(size: int) -> dict:
    short, long = (torch.linspace(*ends, size).tolist() for ends in ((1.0, 1.5), (2.0, 6.0)))
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long}


def _with_rope(
    text: hf.PreTrainedConfig, config: hf.PreTrainedConfig, name: str, fields: Callable[[int], dict]
) -> bool:
    rope = getattr(text, "rope_parameters", None)
    if not rope or not hasattr(text, "max_position_embeddings"):
        return False
    sizes = rotary_sizes(getattr(hf, name), config)
    if not sizes:
        return False
    nested = all(isinstance(part, dict) for part in rope.values())
    text.max_position_embeddings = SWITCH
    if hasattr(text, "original_max_position_embeddings"):
        text.original_max_position_embeddings = SWITCH
    for kind, part in rope.items() if nested else ((None, rope),):
        if kind in sizes:
            part |= fields(sizes[kind]) | {"factor": 4.0, "original_max_position_embeddings": SWITCH}
    return True


def rotary_sizes(made: type, config: hf.PreTrainedConfig) -> dict[str | None, int]:
    """Frequencies of the text decoder's rotary table, by layer type where it keeps one for each."""
    with torch.device("meta"):
        model = made(copy.deepcopy(config))
    found: dict[str | None, int] = {}
    for module in _decoder(model).modules():
        if hasattr(module, "rope_type"):
            for name, buffer in module.named_buffers(recurse=False):
                if name.endswith("inv_freq") and "original" not in name:
                    found[name.removesuffix("inv_freq").removesuffix("_") or None] = buffer.numel()
    return found


def _decoder(model: nn.Module) -> nn.Module:
    return model.get_decoder() or model


_CHANGES = {"window": _windowed, "dynamic": _dynamic, "longrope": _longrope, "alibi": _alibi, "temperature": _tempered}

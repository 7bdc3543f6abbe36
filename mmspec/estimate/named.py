"""The costs of a named model: by a config folder or file, or by a published model in the project's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from mmspec.estimate.model_cost import ModelCost, cost_of_config
from mmspec.estimate.published import CONFIGS
from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.io.readers import read_json
from mmspec.methods.settings import nearest

GUIDED = 2  # branches of a guided image


def named_cost(name: str, *, picture_tokens: int | None = None, guided: bool = True) -> ModelCost:
    """Return the costs of a folder with a `config.json`, that file, or a name in `CONFIGS`. `picture_tokens` is for
    pictures of any size. `guided` image models run with and without the condition, so twice a value."""
    return cost_of_values(config_values(name), name, picture_tokens, guided)


def config_values(name: str) -> dict[str, Any]:
    if name in CONFIGS:
        return CONFIGS[name]
    path = Path(name)
    files = (path / "config.json", path / "transformer" / "config.json")
    file = next((candidate for candidate in files if candidate.is_file()), path)
    if not file.is_file():
        known = ", ".join(CONFIGS)
        raise ValueError(
            f"MODEL: expected a folder with a config.json, that file, a name of the zoo or one of {known}, got {name!r}"
            f"{nearest(name, tuple(CONFIGS))}"
        )
    return read_json(file)


def is_video(values: Mapping[str, Any]) -> bool:
    """Return whether a config is that of a video transformer (Wan)."""
    return {"attention_head_dim", "ffn_dim", "num_layers"} <= values.keys()


def cost_of_values(
    values: Mapping[str, Any], name: str, picture_tokens: int | None = None, guided: bool = True
) -> ModelCost:
    """Return the costs of a config of transformers, or of LlamaGen, whose fields have other names."""
    if {"dim", "n_layer", "n_head"} <= values.keys():
        return _codes_cost(values, name, guided)
    if "model_type" not in values:
        raise ValueError(
            f"MODEL: expected a config with a model_type, got the fields {', '.join(list(values)[:4])} of "
            f"{name!r}, name another model"
        )
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(**values)
    except Exception as error:  # each config class checks its values in its own way
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"MODEL: expected a config of transformers in {name!r}, got {reason!r}, correct it") from error
    return cost_of_config(config, name, picture_tokens)


def _codes_cost(values: Mapping[str, Any], name: str, guided: bool) -> ModelCost:
    """Return the cost of a model of image codes, which decodes like a Llama of its sizes except for its prefix."""
    from transformers import LlamaConfig

    from mmspec.imagegen.llamagen.transformer import Transformer

    known = {field.name for field in fields(GPTConfig)}
    config = GPTConfig(**{key: value for key, value in values.items() if key in known})
    like = LlamaConfig(
        hidden_size=config.dim,
        intermediate_size=config.hidden,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
    )
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return replace(cost_of_config(like, name), parameters=parameters, branches=GUIDED if guided else 1)

"""The costs of a model that is named: by a config folder or file, or by the published model that the project describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from mmspec.estimate.model_cost import ModelCost, cost_of_config
from mmspec.estimate.published import CONFIGS
from mmspec.imagegen.llamagen.config import GPTConfig
from mmspec.io.readers import read_json
from mmspec.methods.settings import nearest

GUIDED = 2  # branches of a guided image


def named_cost(name: str, *, picture_tokens: int | None = None, guided: bool = True) -> ModelCost:
    """The costs of a model.

    Args:
        name: A folder with a `config.json`, that file, or a name of `CONFIGS`.
        picture_tokens: Prompt tokens of a picture, where pictures may have any size.
        guided: Image models pass over every value twice, with and without the condition.

    Raises:
        ValueError: There is no such model, or its config is none of a decoder.
    """
    return cost_of_values(config_values(name), name, picture_tokens, guided)


def config_values(name: str) -> dict[str, Any]:
    """Return the config of a model.

    Args:
        name: See `named_cost`.

    Raises:
        ValueError: There is no such model.
    """
    if name in CONFIGS:
        return CONFIGS[name]
    path = Path(name)
    file = next((one for one in (path / "config.json", path / "transformer" / "config.json") if one.is_file()), path)
    if not file.is_file():
        known = ", ".join(CONFIGS)
        raise ValueError(
            f"MODEL: expected a folder with a config.json, that file, a name of the zoo or one of {known}, got {name!r}"
            f"{nearest(name, tuple(CONFIGS))}"
        )
    return read_json(file)


def is_video(values: Mapping[str, Any]) -> bool:
    """Whether a config is that of a video transformer (Wan)."""
    return {"attention_head_dim", "ffn_dim", "num_layers"} <= values.keys()


def cost_of_values(
    values: Mapping[str, Any], name: str, picture_tokens: int | None = None, guided: bool = True
) -> ModelCost:
    """The costs of a config: of transformers, or of LlamaGen, whose fields have other names."""
    if {"dim", "n_layer", "n_head"} <= values.keys():
        return _codes_cost(values, name, guided)
    if "model_type" not in values:
        raise ValueError(f"MODEL: expected a config with a model_type, got one of {', '.join(list(values)[:4])} for {name!r}, "
                         "name another model")  # fmt: skip
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(**values)
    except Exception as error:  # configs check their values in many ways
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"MODEL: expected a config of transformers in {name!r}, got {reason!r}, correct it") from error
    return cost_of_config(config, name, picture_tokens)


def _codes_cost(values: Mapping[str, Any], name: str, guided: bool) -> ModelCost:
    """A model of image codes decodes like a Llama of its sizes, but for its prefix."""
    from transformers import LlamaConfig

    from mmspec.imagegen.llamagen.transformer import Transformer

    known = {one.name for one in fields(GPTConfig)}
    config = GPTConfig(**{key: value for key, value in values.items() if key in known})
    like = LlamaConfig(hidden_size=config.dim, intermediate_size=config.hidden, num_hidden_layers=config.n_layer,
                       num_attention_heads=config.n_head, num_key_value_heads=config.kv_heads, head_dim=config.head_dim,
                       vocab_size=config.vocab_size)  # fmt: skip
    with torch.device("meta"):
        parameters = sum(one.numel() for one in Transformer(config).parameters())
    return replace(cost_of_config(like, name), parameters=parameters, branches=GUIDED if guided else 1)

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.io.gguf import GgufFile

FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
ROPE_FACTORS = "rope_freqs.weight"
# the table of transformers lacks these names
_MORE_NAMES = {"qwen3": {"attention.key_length": "head_dim"}}
_TEXT_TYPES = {"gemma3": "gemma3_text"}  # a GGUF file of Gemma 3 holds the language model alone
_REQUIRED = (
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
)
_EPSILON = "attention.layer_norm_rms_epsilon"
_TURN_ENDS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
# of Llama 3.1 and 3.2, whose files hold the resulting factors instead of the settings
_LOW, _HIGH, _TRAINED_LENGTH = 1.0, 4.0, 8192


def family_of(file: GgufFile) -> str:
    """Return the architecture of the model in a file, one of `FAMILIES`."""
    family = file.value("general.architecture", str)
    if family not in FAMILIES:
        raise ValueError(
            f"{file.path}: expected a model of one of {', '.join(FAMILIES)}, got {family!r}; use transformers' "
            "own loader"
        )
    if file.metadata.get("split.count", 1) != 1:
        raise ValueError(
            f"{file.path}: expected a whole model, got one of {file.metadata['split.count']} files; merge them "
            "with llama-gguf-split --merge"
        )
    return family


def config_of(file: GgufFile) -> Any:
    """Return the `PreTrainedConfig` of the model in a file: its metadata under transformers' names, by transformers'
    own table. Two values are kept that transformers' loader drops: the width of Qwen3's heads, and the scaling of
    rotary positions. Without the scaling, the model would compute another function."""
    from transformers import AutoConfig

    family = family_of(file)
    for key in _REQUIRED:
        file.value(f"{family}.{key}", int)
    file.value(f"{family}.{_EPSILON}", float)
    values = _renamed(file, family)
    values["model_type"] = _TEXT_TYPES.get(family, family)
    values["tie_word_embeddings"] = all(tensor.name != "output.weight" for tensor in file.tensors)
    values.setdefault("num_key_value_heads", values["num_attention_heads"])
    values.setdefault("vocab_size", len(file.value("tokenizer.ggml.tokens", list)))
    try:
        config = AutoConfig.for_model(**values)
    except Exception as error:  # configs check their values in many ways
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{file.path}: expected metadata that make a config, got {reason!r}; convert the model to GGUF again"
        ) from error
    _scale_positions(config, file, family)
    return config


def _renamed(file: GgufFile, family: str) -> dict[str, Any]:
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    tables = {prefix: GGUF_CONFIG_MAPPING[prefix] for prefix in ("general", "tokenizer")}
    tables[family] = _MORE_NAMES.get(family, {}) | GGUF_CONFIG_MAPPING[family]
    values = {}
    for key, value in file.metadata.items():
        prefix, _, rest = key.partition(".")
        if (name := tables.get(prefix, {}).get(rest)) is not None:
            if isinstance(value, list):
                raise ValueError(
                    f"{file.path}: expected one number for the key {key}, got a list for {len(value)} layers; "
                    "use transformers' own loader"
                )
            values[name] = value
    return values


def _scale_positions(config: Any, file: GgufFile, family: str) -> None:
    factors = next((tensor for tensor in file.tensors if tensor.name == ROPE_FACTORS), None)
    kind = file.metadata.get(f"{family}.rope.scaling.type", "none")
    # Gemma 3 scales its full attention layers only, and has settings for each type of layer
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    if factors is not None:
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rope.update(_llama3_scaling(file.dequantize(factors), float(rope["rope_theta"]), width, file))
    elif kind == "linear":
        rope.update(rope_type="linear", factor=float(file.value(f"{family}.rope.scaling.factor", float)))
    elif kind != "none":
        raise ValueError(
            f"{file.path}: expected positions that are not scaled or scaled linearly, got {kind!r}; use a file "
            "of the model before its context was stretched"
        )


def _llama3_scaling(factors: np.ndarray, theta: float, width: int, file: GgufFile) -> dict[str, Any]:
    """Return the settings of Llama 3's scaling that produce these divisors of the rotary frequencies, float32 [width /
    2] for heads of this width and frequencies of the base `theta`."""
    factor = float(factors.max())
    length = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)  # wavelengths in tokens
    share = np.clip((_TRAINED_LENGTH / length - _LOW) / (_HIGH - _LOW), 0, 1)
    expected = 1 / ((1 - share) / factor + share)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ValueError(
            f"{file.path}: expected a tensor {ROPE_FACTORS} as Llama 3 has it, got other factors; use "
            "a checkpoint in safetensors"
        )
    return {"rope_type": "llama3", "factor": factor, "low_freq_factor": _LOW, "high_freq_factor": _HIGH,
            "original_max_position_embeddings": _TRAINED_LENGTH}  # fmt: skip


def generation_config_of(file: GgufFile, config: Any) -> Any:
    """Return the generation config: the tokens of the config, and every token that ends a turn."""
    from transformers import GenerationConfig

    generation = GenerationConfig.from_model_config(config)
    ends = [config.eos_token_id, *(file.metadata.get(key) for key in _TURN_ENDS)]
    ends = list(dict.fromkeys(token for token in ends if token is not None))
    for token in ends:
        if not isinstance(token, int) or not 0 <= token < config.vocab_size:
            raise ValueError(
                f"{file.path}: expected tokens of a vocabulary of {config.vocab_size}, got {token!r}; convert "
                "the model to GGUF again"
            )
    if len(ends) > 1:
        generation.eos_token_id = ends
    return generation

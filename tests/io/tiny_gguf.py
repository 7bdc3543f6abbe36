"""Tiny random models of the families that GGUF files are converted from, and their files, written with the package `gguf`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HIDDEN, LAYERS, HEADS, KV_HEADS, LENGTH = 64, 2, 4, 2, 128
# the width of heads where transformers' table leaves it to the default of the class
WIDTHS = {"llama": 16, "qwen2": 16, "qwen3": 128, "gemma2": 32, "gemma3": 32}
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] + '\n' + m['content'] }}</s>{% endfor %}"
MIXED = ("Q8_0", "Q4_0", "Q4_1", "F16", "F32")
_WORDS = ("the", "cat", "sat", "on", "a", "mat")


def alphabet() -> list[str]:
    """The 256 characters that byte-level vocabularies write bytes with."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return sorted(bytes_to_unicode().values())


def byte_level() -> dict[str, Any]:
    """Tokens of bytes and of some words, the merges that make these, and three control tokens."""
    tokens, merges = alphabet(), []
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
                tokens.append(word[:end])
    types = [1] * len(tokens) + [3] * 3
    return {
        "model": "gpt2",
        "tokens": [*tokens, "<|s|>", "<|e|>", "<|p|>"],
        "types": types,
        "merges": merges,
        "scores": None,
    }


def sentencepiece() -> dict[str, Any]:
    """Four control tokens, bytes, letters and some words with their scores."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [3, 3, 3, 2] + [6] * 256
    more = ["\u2581", *map(chr, range(ord("a"), ord("z") + 1))]
    more += [w for word in _WORDS for w in ("\u2581" + word, word[:2]) if w not in more]
    more = list(dict.fromkeys(more))
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(more))]
    return {
        "model": "llama",
        "tokens": tokens + more,
        "types": types + [1] * len(more),
        "merges": None,
        "scores": scores,
    }


def vocabulary(family: str) -> dict[str, Any]:
    """The tokenizer's metadata of a family."""
    return sentencepiece() if family.startswith("gemma") else byte_level()


@cache
def tiny_model(family: str, tied: bool = True, width: int | None = None) -> Any:
    """A random model of a family, whose norms are near one and exact in few bits."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        {"gemma3": "gemma3_text"}.get(family, family),
        vocab_size=len(vocabulary(family)["tokens"]),
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=width or WIDTHS[family],
        max_position_embeddings=LENGTH,
        tie_word_embeddings=tied,
        rope_theta=50000.0,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, value in model.named_parameters():
        if value.ndim == 1:
            value.data = (torch.randint(-32, 33, value.shape) / 256) + float("norm" in name and "gemma" not in family)
    return model


def gguf_tensors(model: Any, family: str) -> dict[str, Tensor]:
    """The weights as llama.cpp's converter stores them: rotary rows in pairs for Llama, norms plus one for Gemma."""
    import gguf

    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    table = gguf.get_tensor_name_map(kind, LAYERS)
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        if heads and family == "llama":
            value = value.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        if name.endswith("norm.weight") and family.startswith("gemma"):
            value = value + 1
        base, _, leaf = name.rpartition(".")
        tensors[f"{table.get_name(base)}.{leaf}"] = value.detach()
    return tensors


def metadata(family: str, model: Any) -> dict[str, Any]:
    """The keys of the architecture, with their values."""
    config = model.config
    keys: dict[str, Any] = {
        "context_length": LENGTH,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": 96,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "vocab_size": config.vocab_size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 50000.0,
    }
    if family == "llama":
        keys["rope.dimension_count"] = config.head_dim
    if family in ("qwen3", "gemma2", "gemma3"):
        keys["attention.key_length"] = config.head_dim
    if family.startswith("gemma"):
        keys["attention.sliding_window"] = 32
    return keys


def write_gguf(
    path: Path,
    family: str,
    *,
    kinds: tuple[str, ...] = ("F32",),
    model: Any = None,
    keys: Mapping[str, Any] = {},
    tensors: Mapping[str, Any] = {},
    general: Mapping[str, Any] = {},
) -> Path:
    """Write the file of a tiny model.

    Args:
        path: The file.
        family: The architecture.
        kinds: Types of the matrices, in turn; vectors are F32.
        model: Another model than `tiny_model(family)`.
        keys: Keys of the architecture to change or add; None leaves a key out.
        tensors: Tensors to change or add; None leaves a tensor out.
        general: Other keys to add or, with None, to leave out.
    """
    import gguf

    model = model or tiny_model(family)
    words = vocabulary(family)
    writer = gguf.GGUFWriter(path, family)
    for key, value in {**metadata(family, model), **keys}.items():
        _add(writer, f"{family}.{key}", value)
    special = dict(zip(("padding", "eos", "bos", "unknown"), (0, 1, 2, 3), strict=True))
    if words["model"] == "gpt2":
        count = len(words["tokens"])
        special = {"bos": count - 3, "eos": count - 2, "padding": count - 1}
    rest = {
        "general.name": "tiny",
        "general.license": "mit",
        "tokenizer.ggml.model": words["model"],
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": words["tokens"],
        "tokenizer.ggml.token_type": words["types"],
        "tokenizer.ggml.merges": words["merges"],
        "tokenizer.ggml.scores": words["scores"],
        "tokenizer.chat_template": TEMPLATE,
        "tokenizer.ggml.add_bos_token": False,
        **{f"tokenizer.ggml.{name}_token_id": value for name, value in special.items()},
    }
    for key, value in {**rest, **general}.items():
        _add(writer, key, value)
    matrices = 0
    for name, value in {**gguf_tensors(model, family), **tensors}.items():
        if value is not None:
            array = np.ascontiguousarray(value, np.float32)
            kind = gguf.GGMLQuantizationType[kinds[matrices % len(kinds)] if array.ndim > 1 else "F32"]
            matrices += array.ndim > 1
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)

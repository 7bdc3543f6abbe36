"""Folders of tiny random models as `mmspec check` is given them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import transformers as hf
from safetensors.torch import load_file, save_file

from tests.vlm.classes.build import config_of, model_of
from tests.vlm.tiny import tiny

SHARDS = "20KB"  # so that a tiny model has several


def of_suite(kind: str) -> Callable[[Path], str]:
    """A model that the suite tests whole."""

    def make(folder: Path) -> str:
        tiny(kind).save_pretrained(folder)
        return str(folder)

    return make


def of_class(name: str) -> Callable[[Path], str]:
    """A model of any class of transformers."""

    def make(folder: Path) -> str:
        model_of(name, config_of(name)).save_pretrained(folder)
        return str(folder)

    return make


def without_shard(folder: Path) -> str:
    """A LLaVA whose last file of weights is missing."""
    tiny("llava").save_pretrained(folder, max_shard_size=SHARDS)
    sorted(folder.glob("*.safetensors"))[-1].unlink()
    return str(folder)


def without_tensor(folder: Path) -> str:
    """A Llama whose file of weights lacks a matrix."""
    tiny("llama").save_pretrained(folder)
    file = folder / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, file, metadata={"format": "pt"})
    return str(folder)


def qwen3_8b(folder: Path) -> str:
    """The config of Qwen3-8B alone, in a folder of that name."""
    folder = folder.with_name("Qwen3-8B")
    folder.mkdir()
    sizes = dict(
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
    )
    config = hf.Qwen3Config(**sizes, architectures=["Qwen3ForCausalLM"], dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict() | {"architectures": ["Qwen3ForCausalLM"]}))
    return str(folder)


FOLDERS: dict[str, Callable[[Path], str]] = {
    "llava": of_suite("llava"),
    "qwen2_5_vl": of_suite("qwen2_5_vl"),
    "qwen3_vl": of_suite("qwen3_vl"),
    "llama": of_suite("llama"),
    "qwen3_5": of_class("Qwen3_5ForConditionalGeneration"),
    "gpt_oss": of_class("GptOssForCausalLM"),
    "zoo": lambda folder: "zoo:vlm",
    "mamba": of_class("MambaForCausalLM"),
    "damaged": without_shard,
    "config": qwen3_8b,
}

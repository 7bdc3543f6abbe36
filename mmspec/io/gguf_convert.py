from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.io.checkpoints import load_part
from mmspec.io.files import file_digest, replacing_folder, write_json_atomic, writing
from mmspec.io.gguf import GgufFile, need_gguf, read_gguf
from mmspec.io.gguf_config import ROPE_FACTORS, config_of, family_of, generation_config_of
from mmspec.io.loading import abbreviated, sketch

CARD = "card.json"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # as safetensors calls them
_HEAD = "lm_head.weight"
_TOKENIZERS = ("gpt2", "llama")  # byte-level pairs and sentencepiece
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def convert_gguf(
    file: str | Path, out: str | Path, *, dtype: torch.dtype = torch.float32, source: dict[str, Any] | None = None
) -> Path:
    """Convert a GGUF file of one of `FAMILIES` to a folder for `from_pretrained`: safetensors, config, tokenizer and a
    card. The weights equal those of transformers' GGUF loader. `out` is new or empty, and complete or absent
    afterwards. `source` has further facts about the origin of the file, for the card."""
    from transformers import AutoModelForCausalLM

    need_gguf()
    file, out = Path(file), Path(out)
    header = read_gguf(file)
    config = config_of(header)
    config.dtype = dtype
    model = sketch(lambda: AutoModelForCausalLM.from_config(config, trust_remote_code=False), len(header.tensors), file)
    config.architectures = [type(model).__name__]
    names = parameter_names(header, model)
    parts = config, generation_config_of(header, config), _tokenizer(header)
    with replacing_folder(out) as folder, writing(folder):
        count = _write_weights(header, model, names, dtype, folder / "model.safetensors")
        for part in parts:
            part.save_pretrained(folder)
        write_json_atomic(folder / CARD, _card(header, count, dtype, source or {}))
    return out


def _tokenizer(file: GgufFile) -> Any:
    """Return the tokenizer that transformers builds from the metadata, with the special tokens of the file."""
    from transformers import PreTrainedTokenizerFast

    if (kind := file.value("tokenizer.ggml.model", str)) not in _TOKENIZERS:
        raise ValueError(
            f"{file.path}: expected a tokenizer of type {' or '.join(_TOKENIZERS)}, got {kind!r}; use "
            "transformers' own loader"
        )
    tokens = file.value("tokenizer.ggml.tokens", list)
    special = {}
    for name, key in _SPECIAL.items():
        number = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None and not (isinstance(number, int) and 0 <= number < len(tokens)):
            raise ValueError(
                f"{file.path}: expected tokens of a vocabulary of {len(tokens)}, got {number!r} for the key "
                f"tokenizer.ggml.{key}_token_id; convert the model to GGUF again"
            )
        special[name] = None if number is None else tokens[number]
    tokenizer = load_part(PreTrainedTokenizerFast, file.path.parent, gguf_file=file.path.name, **special)
    for name, token in special.items():  # older versions of transformers choose other tokens for some files
        if getattr(tokenizer, name) != token:
            setattr(tokenizer, name, token)
    return tokenizer


def parameter_names(file: GgufFile, model: nn.Module) -> dict[str, str]:
    """Return file tensor -> parameter of a model, also on the meta device, by the table of the package `gguf`."""
    gguf = need_gguf()
    family = family_of(file)
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == family)
    table = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    names, missing = {}, []
    present = {tensor.name for tensor in file.tensors}
    for parameter in model.state_dict():
        base, _, leaf = parameter.rpartition(".")
        name = f"{table.get_name(base)}.{leaf}"
        if name in present:
            names[name] = parameter
        elif not (parameter == _HEAD and model.config.tie_word_embeddings):
            missing.append(f"{name} ({parameter})")
    if missing:
        raise ValueError(
            f"{file.path}: expected all tensors of a {type(model).__name__}, got no {abbreviated(missing)}; "
            "convert the model to GGUF again"
        )
    if unknown := sorted(present - names.keys() - {ROPE_FACTORS}):
        raise ValueError(
            f"{file.path}: expected the tensors of a {type(model).__name__} alone, got {abbreviated(unknown)} "
            "too, which transformers has no place for; use another checkpoint"
        )
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}
    for name, parameter in names.items():
        if shapes[name] != (expected := tuple(model.get_parameter(parameter).shape)):
            raise ValueError(
                f"{file.path}: expected a tensor {name} of shape {expected} by the metadata, got {shapes[name]}; "
                "convert the model to GGUF again"
            )
    # the order of the library's writer
    return dict(sorted(names.items(), key=lambda pair: pair[1]))


def _write_weights(header: GgufFile, model: nn.Module, names: dict[str, str], dtype: torch.dtype, path: Path) -> int:
    """Write the weights as a safetensors file, with one tensor in memory at a time, and return the number of
    parameters. The library's own writer needs all tensors at once, four to eight times the size of the GGUF file."""
    state = model.state_dict()
    shapes = {name: state[name].shape for name in names.values()}
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    count, width = 0, dtype.itemsize
    for name, shape in shapes.items():
        end = count + shape.numel()
        table[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [count * width, end * width]}
        count = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the numbers to 8 bytes
    with writing(path), open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in _values(header, model.config, names):
            file.write(value.to(dtype).view(torch.uint8).numpy())
    return count


def _values(file: GgufFile, config: Any, names: Iterable[str]) -> Iterator[Tensor]:
    """Yield the parameters in the order of `names`, float32, each dequantised on demand."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    undo = TENSOR_PROCESSORS.get(family_of(file), TensorProcessor)(config=config.to_dict())
    tensors = {tensor.name: tensor for tensor in file.tensors}
    for name in names:
        # the processor restores the order of rotary rows and subtracts 1 from Gemma's norms
        weights = undo.process(weights=file.dequantize(tensors[name]), name=name).weights
        value = torch.from_numpy(np.require(weights, requirements=("C", "W")))  # copies views of the file
        if not bool(value.isfinite().all()):
            raise ValueError(f"{file.path}: expected finite weights, got NaN or Inf in {name}; fetch the file again")
        yield value


def _card(file: GgufFile, count: int, dtype: torch.dtype, source: dict[str, Any]) -> dict[str, Any]:
    named = {key: file.metadata.get(f"general.{key}") for key in ("name", "license")}
    return {
        **named,
        "architecture": family_of(file),
        "parameters": count,
        "dtype": str(dtype).removeprefix("torch."),
        "source": {"file": file.path.name, "sha256": file_digest(file.path), "tensor_types": file.kinds(), **source},
    }

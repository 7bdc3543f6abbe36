"""A transformer or tokenizer in a folder: model.safetensors and config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmspec.core.files import replacing, write_json_atomic

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def write_component(model: nn.Module, folder: Path) -> None:
    """Weights and config of a module with a `config` into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as temporary:
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, temporary)
    write_json_atomic(folder / CONFIG, model.config.to_dict())


def read_component(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and config fields. Raises ValueError for a missing or damaged file or a config that is no JSON object."""
    return read_weights(folder / WEIGHTS), read_json(folder / CONFIG)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Tensors of a .safetensors file. Raises ValueError for another format and a missing or damaged file."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: expected a .safetensors file, got {path.suffix or 'no suffix'}; convert a .pt with "
                         f"`python -m mmspec.imagegen.llamagen.convert {path} FOLDER`")  # fmt: skip
    if not path.is_file():
        pickled = sorted(other.name for other in path.parent.glob("*.pt"))
        if pickled:
            raise ValueError(f"{path}: expected a .safetensors file, got only {pickled[0]}; convert it with "
                             f"`python -m mmspec.imagegen.llamagen.convert {path.with_name(pickled[0])} FOLDER`")  # fmt: skip
        raise ValueError(f"{path}: expected a .safetensors file, got none there; check the path")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: expected safetensors, got a file that does not open as such ({error}) and may be cut off "
                         "or a pickle; fetch it again, or convert a pickle with "
                         f"`python -m mmspec.imagegen.llamagen.convert {path} FOLDER`") from error  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError for a missing file and for anything else in it."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a JSON file, got none there; check the folder")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # too many brackets are no config either
        raise ValueError(f"{path}: expected JSON, got {error}; write the file again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}; write the file again")
    return value

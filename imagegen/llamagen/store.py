"""A transformer or tokenizer in a folder: model.safetensors and config.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.core.files import replacing, write_json_atomic
from mmspec.core.readers import naming, read_json, read_tensors

Module = TypeVar("Module", bound=nn.Module)
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


def load_component(folder: Path, build: Callable[[dict[str, Tensor], dict[str, Any]], Module]) -> Module:
    """What `build` makes of tensors and config fields.   Raises ValueError as it and `read_component` do, with the folder."""
    tensors, config = read_component(folder)
    with naming(folder):
        return build(tensors, config)


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
        return read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{error}, or convert a pickle with `python -m mmspec.imagegen.llamagen.convert {path} "
                         "FOLDER`") from error  # fmt: skip

"""Components of a pipeline in folders: model.safetensors and config.json of a transformer or tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from mmspec.core.pipeline_folder import Component
from mmspec.io.pretrained import CONFIG, WEIGHTS, write_weights
from mmspec.io.readers import naming, read_json, read_tensors

Module = TypeVar("Module", bound=nn.Module)
_PICKLED = ("*.pt", "*.pth", "*.ckpt")


def write_component(model: nn.Module, folder: Path) -> None:
    write_weights(model.state_dict(), model.config.to_dict(), folder)


def module_component(name: str, build: Callable, class_name: str = "", kind: str = "llamagen") -> Component:
    """Return a component that is written with `write_component`; without a class name, the index has no entry for it."""
    entry = ("mmspec", class_name) if class_name else None
    return Component(
        name, f"model.{name}", lambda folder, *_: load_component(folder, build, kind), write_component, entry
    )


def read_component(folder: Path, kind: str = "llamagen") -> tuple[dict[str, Tensor], dict[str, Any]]:
    return read_weights(folder / WEIGHTS, kind), read_json(folder / CONFIG)


def load_component(
    folder: Path, build: Callable[[dict[str, Tensor], dict[str, Any]], Module], kind: str = "llamagen"
) -> Module:
    """Return the module that `build` constructs from the tensors and config fields of a folder; errors name the folder."""
    tensors, config = read_component(folder, kind)
    with naming(folder):
        return build(tensors, config)


def read_weights(path: str | Path, kind: str = "llamagen") -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file; messages about pickles suggest `mmspec convert --kind` with `kind`."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"{path}: expected a .safetensors file, got {path.suffix or 'no suffix'}; convert a .pt with "
            f"`mmspec convert {path} FOLDER --kind {kind}`"
        )
    if not path.is_file():
        pickled = sorted(other.name for pattern in _PICKLED for other in path.parent.glob(pattern))
        if pickled:
            raise ValueError(
                f"{path}: expected a .safetensors file, got only {pickled[0]}; convert it with "
                f"`mmspec convert {path.with_name(pickled[0])} FOLDER --kind {kind}`"
            )
        raise ValueError(f"{path}: expected a .safetensors file, got none there; check the path")
    try:
        return read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{error}, or convert a pickle with `mmspec convert {path} FOLDER --kind {kind}`") from error

"""Pipelines in folders: a folder for each component, and model_index.json, which names them and is written last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from mmspec.core.layers.fingerprint import modules_of
from mmspec.io.files import write_json_atomic, writing
from mmspec.io.pretrained import folder_of, from_zoo
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import check_types

INDEX = "model_index.json"


@dataclass(frozen=True, slots=True)
class Component:
    """A component of a pipeline, and the folder that holds it."""

    name: str  # of its folder, and of its entry in the index
    path: str  # its attribute of the pipeline, such as "model.vae"; None there for an optional component
    read: Callable[[Path, Mapping[str, Any], Mapping[str, Any]], Any]  # (its folder, the index, components before it)
    write: Callable[[Any, Path], Mapping[str, Any] | None]  # returns further entries of the index
    entry: tuple[str, str] | None = None  # its library and class, for the index
    optional: bool = False
    needs_index: bool = False  # without an index it is not looked for
    module: str = ""  # the attribute of the component that is its module; "" for the component itself
    keeps_dtype: bool = False  # autoencoders run in their own precision


class SavedPipeline:
    """Base of pipelines in folders. Without an index, every component that has a folder is loaded. A subclass declares
    its components, in the order of its constructor's arguments, and the rest of its index."""

    components: ClassVar[Sequence[Component]]
    Index: ClassVar[type]  # the entries of the index besides the class, with their types and in the order of the file
    settings: ClassVar[Sequence[str]]  # the entries that are keywords of the constructor
    needs_index: ClassVar[bool] = False
    files: ClassVar[Sequence[str]] = ("*.json", "*.safetensors")  # to fetch from a repository

    @classmethod
    def from_pretrained(cls, path_or_repo: str | Path, *, dtype: torch.dtype | None = None) -> Self:
        """Load the pipeline of a folder, or of a hub repository named by its id (the only case that uses the network).
        The dtype is that of transformer and text encoder, None for the files'; autoencoders keep their own."""
        folder = folder_of(path_or_repo, cls.files)
        with naming(folder):
            pipe = cls._read(folder)
        return pipe if dtype is None else pipe.to(dtype=dtype)

    @classmethod
    def load_draft(cls, weights: str) -> Self:
        """Load a pipeline of this class that drafts for another."""
        return cls.from_pretrained(weights)

    @classmethod
    def _read(cls, folder: Path) -> Self:
        has_index = cls.needs_index or (folder / INDEX).exists()
        index = read_json(folder / INDEX) if has_index else {}
        kind = index.get("_class_name", None if cls.needs_index else cls.__name__)
        if kind != cls.__name__:
            raise ValueError(f"{folder / INDEX}: expected a {cls.__name__}, got {kind!r}; check the folder")
        with naming(folder / INDEX):
            check_types(cls.Index, index)
            settings = cls._read_settings(index)
        parts: dict[str, Any] = {}
        for component in cls.components:
            place = folder / component.name
            is_there = index.get(component.name) if has_index else place.is_dir() and not component.needs_index
            parts[component.name] = component.read(place, index, parts) if is_there or not component.optional else None
        return cls._assemble(parts, settings)

    @classmethod
    def _read_settings(cls, index: Mapping[str, Any]) -> dict[str, Any]:
        return {name: index[name] for name in cls.settings if index.get(name) is not None}

    @classmethod
    def _assemble(cls, parts: Mapping[str, Any], settings: Mapping[str, Any]) -> Self:
        return cls(*parts.values(), **settings)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the pipeline; the index is written last."""
        folder = Path(folder)
        index = {"_class_name": type(self).__name__, **self._written_settings()}
        for component in reversed(self.components):  # a text encoder may be refused before anything is written
            if (part := _attribute(self, component.path)) is not None:
                index |= component.write(part, folder / component.name) or {}
                index |= {component.name: component.entry} if component.entry else {}
        order = ["_class_name", *(field.name for field in fields(self.Index))]
        write_json_atomic(folder / INDEX, {name: index[name] for name in sorted(index, key=order.index)})

    def _written_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.settings}

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move all components; `dtype` is for transformer and text encoder, and autoencoders stay in their own."""
        for component in self.components:
            if (module := _attribute(self, f"{component.path}.{component.module}".rstrip("."))) is not None:
                module.to(device=device, dtype=None if component.keeps_dtype else dtype)
        return self


def _attribute(owner: Any, path: str) -> Any:
    """Return the attribute at a dotted path; None where any of its attributes is missing."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def smaller_pipeline(weights: str, pipe: SavedPipeline) -> Any:
    """Load a pipeline that drafts for another of its class, on its device and in its precision."""
    kind = next(base for base in type(pipe).__mro__ if "components" in vars(base))
    draft = from_zoo(weights) or kind.load_draft(weights)
    if not isinstance(draft, kind):
        raise ValueError(
            f"expected a {kind.__name__} behind @, got {type(draft).__name__}; name another folder or model"
        )
    like = next(weight for module in modules_of(pipe.model) for weight in module.parameters())
    return draft.to(device=like.device, dtype=like.dtype)


def write_encoder(encoder: Any, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Write a text encoder of transformers, and its tokenizer into a folder beside it. Return its entry of the index."""
    for part, place in ((encoder, folder), (tokenizer, folder.with_name("tokenizer"))):
        with writing(place):
            part.save_pretrained(place)
    return {folder.name: ["transformers", type(encoder).__name__]}

"""The models of the table by name: their folders, their loading and their building."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any

from mmspec.zoo.files.fetched import fetched_folder
from mmspec.zoo.files.table import MODELS, ZooModel

WEIGHTS = Path(__file__).parents[1] / "weights"


def names() -> list[str]:
    """Return the names that `load` accepts: all models that ship, and others that have been built or fetched."""
    return [name for name, row in MODELS.items() if row.ships or has_weights(name)]


def folder_of(name: str) -> Path:
    """Return the folder of a model: `weights/vlm_small` for "vlm/small", and the user's cache for a fetched model.

    Raises:
        ValueError: The name is unknown.
    """
    if name not in MODELS:
        raise ValueError(f"expected one of {', '.join(MODELS)}, got {name!r}, pick a name from mmspec.zoo.names()")
    return fetched_folder(name) if MODELS[name].source else WEIGHTS / name.replace("/", "_")


def has_weights(name: str) -> bool:
    return any(folder_of(name).rglob("*.safetensors"))


def folder_with_weights(name: str) -> Path:
    folder = folder_of(name)
    if not has_weights(name):
        raise ValueError(f"expected weights in {folder}, got none, run `{command_for(name)}`")
    return folder


def command_for(name: str) -> str:
    return f"mmspec zoo {'fetch' if MODELS[name].source else 'build'} {name}"


def load(name: str, *, dtype: Any = None, progress: bool = False) -> Any:
    """Load an embedded or a fetched model: "vlm" -> (model, processor), "smollm2" -> (model, tokenizer).

    Args:
        name: A name of `names()`.
        dtype: A `torch.dtype` for a fetched model; None for float32. Embedded models are always float32.
        progress: Whether transformers may draw progress bars while it reads the weights. Other loads keep their
            setting.

    Raises:
        ValueError: The name is unknown, the weights are missing, or a dtype is passed for an embedded model.
    """
    folder, row = folder_with_weights(name), MODELS[name]
    if dtype is not None and row.source is None:
        raise ValueError(f"dtype: expected none for {name!r}, got {dtype}; convert the loaded model with `.to`")
    with _without_bars() if row.transformers and not progress else nullcontext():
        model = read(name, folder, **({"dtype": dtype} if row.source else {}))
    if row.auto and has_weights(row.auto):
        from mmspec.vlm import offer

        offer(model[0], partial(_drafts_for, row))
    return model


def read(name: str, folder: Path, **options: Any) -> Any:
    """Load the model of a name from any folder; a drafter has the shapes of its row in the table."""
    row = MODELS[name]
    model = _function(row.loader)(folder, *_parts(row.uses), **options)
    if row.block:
        model = model.with_block(row.block)
    if not row.chains:
        return model
    from mmspec.core.drafting.shapes import Chain
    from mmspec.core.length.controls import FixedLength

    return model.with_shape(*(Chain(FixedLength(length)) for length in row.chains))


def build(name: str, out: Path, work: Path, **options: Any) -> dict[str, Any]:
    """Train an embedded model from scratch, write it with its card, and return the card. Options are `resume`, `device`
    and `measure` (of a model and its processor); a builder receives those it has. `work` has checkpoints and logs."""
    row = MODELS[name]
    function = _function(f"zoo.training.{row.builder}")
    if row.recipe:
        options["recipe"] = _function(f"zoo.training.{row.builder.partition(':')[0]}:{row.recipe}")()
    options = {key: value for key, value in {"name": name, **options}.items() if key in signature(function).parameters}
    return function(out, work, *_parts(row.needs), **options)


def _parts(names: Sequence[str]) -> list[Any]:
    """Return models for "NAME", and folders with weights for "NAME/"."""
    return [folder_with_weights(name[:-1]) if name.endswith("/") else load(name) for name in names]


def _function(place: str) -> Callable[..., Any]:
    """Return the function at MODULE:FUNCTION below `mmspec`."""
    module, _, name = place.partition(":")
    return attrgetter(name)(import_module(f"mmspec.{module}"))


def _drafts_for(row: ZooModel) -> Any:
    """Return the drafters of `drafter="auto"` for a model. For a fetched model these are prompt lookup, the drafter
    with trees, and both merged: passes over more rows cost little more, so the controller may choose trees."""
    drafter = load(row.auto)
    if row.source is None:
        return drafter
    from mmspec.core.drafting.shapes import DynamicTree, StaticTree
    from mmspec.vlm import drafters

    tree = drafter.with_shape(DynamicTree(nodes=32, depth=7, width=4), StaticTree())
    return drafters.PromptLookup(longest=15), tree, drafters.Merged(drafter)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide progress bars of transformers inside the block, without a change to the caller's setting."""
    from transformers.utils import logging

    before = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)

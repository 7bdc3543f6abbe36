"""The models of the table by name: their folders, how they are loaded, and how they are built."""

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
    """The names that `load` accepts now: all that ship, and of the others those that were built or fetched."""
    return [name for name, row in MODELS.items() if row.ships or has_weights(name)]


def folder_of(name: str) -> Path:
    """Where the weights of `name` lie: "vlm/small" in `weights/vlm_small`, a fetched model in the user's cache folder."""
    if name not in MODELS:
        raise ValueError(f"expected one of {', '.join(MODELS)}, got {name!r}, pick a name from mmspec.zoo.names()")
    return fetched_folder(name) if MODELS[name].source else WEIGHTS / name.replace("/", "_")


def has_weights(name: str) -> bool:
    """Whether the weights of a model are there."""
    return any(folder_of(name).rglob("*.safetensors"))


def folder_with_weights(name: str) -> Path:
    """`folder_of`.   Raises ValueError, which says how to get them, where the weights are missing."""
    folder = folder_of(name)
    if not has_weights(name):
        raise ValueError(f"expected weights in {folder}, got none, run `{command_for(name)}`")
    return folder


def command_for(name: str) -> str:
    """The command that brings the weights of a name."""
    return f"mmspec zoo {'fetch' if MODELS[name].source else 'build'} {name}"


def load(name: str, *, dtype: Any = None, progress: bool = False) -> Any:
    """Load an embedded or a fetched model: "vlm" -> (model, processor), "smollm2" -> (model, tokenizer).

    Args:
        name: A name of `names()`.
        dtype: A `torch.dtype` for the weights of a fetched model, which are float32 otherwise; embedded ones are float32.
        progress: Let transformers draw its bars on stderr while it reads weights; what the caller has set for other loads
            stays.

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
    """The model of a name from any folder; a drafter with the shapes of its row."""
    row = MODELS[name]
    model = _function(row.loader)(folder, *_parts(row.uses), **options)
    if row.block:
        model = model.with_block(row.block)
    if not row.chains:
        return model
    from mmspec.core.drafting.shapes import Chain
    from mmspec.core.length import FixedLength

    return model.with_shape(*(Chain(FixedLength(length)) for length in row.chains))


def build(name: str, out: Path, work: Path, **options: Any) -> dict[str, Any]:
    """Train an embedded model from nothing and write it with its card.

    Args:
        name: A name of the table.
        out: Folder of the weights and the card.
        work: Folder of checkpoints and logs.
        options: `resume`, `device` and `measure` (of a model and its processor); a builder gets those it takes.

    Returns:
        The card.

    Raises:
        ValueError: A model that it is built from has no weights.
    """
    row = MODELS[name]
    function = _function(f"zoo.training.{row.builder}")
    if row.recipe:
        options["recipe"] = _function(f"zoo.training.{row.builder.partition(':')[0]}:{row.recipe}")()
    options = {key: value for key, value in {"name": name, **options}.items() if key in signature(function).parameters}
    return function(out, work, *_parts(row.needs), **options)


def _parts(names: Sequence[str]) -> list[Any]:
    """Models for "NAME", folders with weights for "NAME/"."""
    return [folder_with_weights(name[:-1]) if name.endswith("/") else load(name) for name in names]


def _function(place: str) -> Callable[..., Any]:
    """The function at MODULE:FUNCTION below `mmspec`."""
    module, _, name = place.partition(":")
    return attrgetter(name)(import_module(f"mmspec.{module}"))


def _drafts_for(row: ZooModel) -> Any:
    """What `drafter="auto"` drafts with for a model: its drafter; for a fetched one prompt lookup, the drafter, and both in
    one tree. A pass over many rows costs little more than over one there, so the controller may draft trees."""
    drafter = load(row.auto)
    if row.source is None:
        return drafter
    from mmspec.core.drafting.shapes import DynamicTree, StaticTree
    from mmspec.vlm import drafters

    tree = drafter.with_shape(DynamicTree(nodes=32, depth=7, width=4), StaticTree())
    return drafters.PromptLookup(longest=15), tree, drafters.Merged(drafter)


@contextmanager
def _without_bars() -> Iterator[None]:
    """transformers draws no bars inside; whether it draws any elsewhere is the caller's setting, which is not touched."""
    from transformers.utils import logging

    before = logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)

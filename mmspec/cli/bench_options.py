"""Options of `mmspec bench DOMAIN`, made from the fields of the domain's config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from mmspec.cli.options import named_paths, names, numbers
from mmspec.evaluate.engine.config import BenchConfig, flag_of

_PAIRS = tuple[tuple[str, str], ...]


def parameters(config: type[BenchConfig]) -> Iterator[Parameter]:
    """A typer option per field: several numbers or names are one text with commas, named paths may be repeated."""
    types = _types(config)
    for one in fields(config):
        kind, many = types[one.name], _items(types[one.name])
        taken = list[str] | None if kind == _PAIRS else str | None if many else kind
        shown = typer.Option(flag_of(config, one.name), help=one.metadata["help"], metavar=one.metadata["shown"])
        default = None if many else one.default
        yield Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=Annotated[taken, shown], default=default)


def settings(config: type[BenchConfig], given: dict[str, Any]) -> dict[str, Any]:
    """The config's fields from what typer was given.   Raises BadOption for texts that are none of its values."""
    types = _types(config)
    return {one.name: _value(config, one, types[one.name], given[one.name]) for one in fields(config)}


def _value(config: type[BenchConfig], one: Field, kind: Any, given: Any) -> Any:
    flag, item = flag_of(config, one.name), _items(kind)
    if item is None:
        return given
    if given is None:
        return one.default
    if kind == _PAIRS:
        return tuple((name, str(path)) for name, path in named_paths(flag, given))
    return names(flag, given) if item is str else numbers(flag, given, item)


def _types(config: type[BenchConfig]) -> dict[str, Any]:
    """The type of every field, without None."""
    found = get_type_hints(config)
    return {one.name: _without_none(found[one.name]) for one in fields(config) if one.default is not MISSING}


def _without_none(kind: Any) -> Any:
    some = [one for one in get_args(kind) if one is not NoneType]
    return some[0] if NoneType in get_args(kind) and len(some) == 1 else kind


def _items(kind: Any) -> Any:
    """The type of a tuple's items; None for what is no tuple."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None

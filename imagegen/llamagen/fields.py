"""Published config files into config classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Config = TypeVar("Config")


def from_fields(cls: type[Config], config: Config | Mapping[str, Any], left_out: Sequence[str], what: str) -> Config:
    """A config as it is, or made of a mapping of field names without those in `left_out`, which only training reads.

    Raises ValueError for unknown fields, where `what` the config is of is said, and for values of a wrong type.
    """
    if isinstance(config, cls):
        return config
    given = {name: value for name, value in config.items() if name not in left_out}
    if unknown := sorted(set(given) - {field.name for field in fields(cls)}):
        raise ValueError(f"config: expected fields of {what}, got {unknown}; remove them")
    check_types(cls, given)
    return cls(**given)


def check_types(cls: type, given: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
    """Raises ValueError for a value whose type is not the one its field is annotated with.

    names: the field of a name that is none itself; names without a field pass.
    """
    written, hints = {field.name: field.type for field in fields(cls)}, get_type_hints(cls)
    for name, value in given.items():
        own = (names or {}).get(name, name)
        if own in hints and not _is(value, hints[own]):
            raise ValueError(f"{name}: expected {written[own]}, got {value!r:.60}; correct the config")


def _is(value: Any, hint: Any) -> bool:
    kind = get_origin(hint)
    if kind is UnionType:
        return any(_is(value, one) for one in get_args(hint))
    if kind is tuple:  # a list in JSON
        return isinstance(value, list | tuple) and all(_is(one, get_args(hint)[0]) for one in value)
    if kind is Literal:  # which of them there are the config itself says
        return isinstance(value, tuple({type(one) for one in get_args(hint)}))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, {int: Integral, float: Real}.get(hint, hint))

"""Config fields, from files into config classes: the one place where their types are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from numbers import Integral, Real
from sys import float_info
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Config = TypeVar("Config")
_LARGEST = 2**63 - 1  # what a size of a tensor can be


def from_fields(
    cls: type[Config], config: Config | Mapping[str, Any], left_out: Sequence[str] = (), what: str = ""
) -> Config:
    """A config as it is, or made of a mapping of field names without those in `left_out`, which only training reads.

    Raises ValueError for unknown and missing fields, where `what` the config is of is said, for values of a wrong type, and
    as the class itself does.
    """
    if isinstance(config, cls):
        return config
    what = what or cls.__name__
    given = {name: value for name, value in config.items() if name not in left_out}
    if unknown := sorted(set(given) - {field.name for field in fields(cls)}):
        raise ValueError(f"config: expected fields of {what}, got {unknown}; remove them")
    needed = [field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING]
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"config: expected the fields {needed} of {what}, got none for {missing}; add them")
    check_types(cls, given)
    try:
        return cls(**given)
    except ArithmeticError as error:
        raise ValueError(f"config: expected sizes of {what} that divide each other, got {given}; correct it") from error


def check_types(cls: type, given: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
    """Raises ValueError for a value whose type is not the one its field is annotated with, and for a number that no tensor
    can hold: NaN or Inf, and an integer beyond 64 bits.

    names: the field of a name that is none itself; names without a field pass.
    """
    written, hints = {field.name: field.type for field in fields(cls)}, get_type_hints(cls)
    for name, value in given.items():
        own = (names or {}).get(name, name)
        if own in hints and not fits(value, hints[own]):
            raise ValueError(f"{name}: expected {written[own]}, got {value!r:.60}; correct the config")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type. A number also has to fit into a tensor."""
    kind = get_origin(hint)
    if kind in (UnionType, Union):
        return any(fits(value, one) for one in get_args(hint))
    if kind is tuple:  # a list in JSON
        return isinstance(value, list | tuple) and all(fits(one, get_args(hint)[0]) for one in value)
    if kind in (list, dict):
        return isinstance(value, kind)
    if kind is Literal:  # which of them there are the config itself says
        return isinstance(value, tuple({type(one) for one in get_args(hint)}))
    if isinstance(value, bool):
        return hint is bool
    if hint is int:
        return isinstance(value, Integral) and abs(value) <= _LARGEST
    if hint is float:
        return isinstance(value, Real) and abs(value) <= float_info.max
    return isinstance(value, hint)

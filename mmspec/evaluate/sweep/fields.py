"""The types that fields of records are checked against, and the check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 60  # characters of a wrong value that an error quotes


@dataclass(frozen=True, slots=True)
class Value:
    """A single value.

    Args:
        expected: the allowed values in words, for errors.
        holds: whether a value is allowed.
    """

    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose items are all of one type.

    Args:
        item: the type of every item.
        count: the length, or None for any.
    """

    item: Type
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Object:
    """An object with named fields.

    Args:
        fields: the type of every field that must be there.
        optional: the type of every field that may be absent.
        others: the type of all further fields.
    """

    fields: Mapping[str, Type] = field(default_factory=dict)
    optional: Mapping[str, Type] = field(default_factory=dict)
    others: Type | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A type that depends on the value.

    Args:
        pick: maps a value to its type.
    """

    pick: Callable[[Any], Type]


Type = Value | ListOf | Object | Chosen


def faults(kind: Type, value: Any, name: str) -> Iterator[str]:
    """Yield what is wrong with a value, one "expected ..., got ..." for every wrong field.

    Args:
        kind: the type to check against.
        value: any JSON value.
        name: the name of the field, for the texts; "" for a whole record.
    """
    if isinstance(kind, Chosen):
        yield from faults(kind.pick(value), value, name)
    elif isinstance(kind, Value):
        if not kind.holds(value):
            yield _fault(kind.expected, name, value)
    elif isinstance(kind, ListOf):
        if not isinstance(value, list) or kind.count not in (None, len(value)):
            yield _fault("a list" if kind.count is None else f"a list of {kind.count}", name, value)
        else:
            for number, item in enumerate(value):
                yield from faults(kind.item, item, f"{name}[{number}]")
    elif not isinstance(value, dict):
        yield _fault("an object", name, value)
    else:
        yield from _wrong_fields(kind, value, name)


def _wrong_fields(kind: Object, value: dict[str, Any], name: str) -> Iterator[str]:
    known = {**kind.fields, **kind.optional}
    for part in kind.fields:
        if part not in value:
            yield f"expected a field {_inside(name, part)}, got none"
    for part, content in value.items():
        inner = known.get(part, kind.others)
        if inner is not None:
            yield from faults(inner, content, _inside(name, part))


def _inside(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _fault(expected: str, name: str, value: Any) -> str:
    return f"expected {expected} as {name}, got {json.dumps(value)[:_SHOWN]}"


def optional(kind: Type) -> Chosen:
    """Return the type of values that may be null instead."""
    return Chosen(lambda value: ANY if value is None else kind)


def whole(least: int, most: int = 10**12) -> Value:
    """Return the type of whole numbers in a range, both ends included."""
    return Value(
        f"a whole number of {least} to {most}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
    )


def number(least: float, most: float) -> Value:
    """Return the type of finite numbers in a range, both ends included."""
    return Value(
        f"a number of {least:g} to {most:g}",
        # a comparison with NaN is false
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most,
    )


ANY = Value("any value", lambda value: True)
TEXT = Value("a text", lambda value: isinstance(value, str))
SWITCH = Value("true or false", lambda value: isinstance(value, bool))
NAME = Value(
    "a name without separators of paths",
    lambda value: isinstance(value, str) and value.strip(".") != "" and not set(value) & set("/\\\0"),
)

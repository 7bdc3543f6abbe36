"""The types that fields of records are checked against, and the check."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 60  # characters of a wrong value that an error quotes


@dataclass(frozen=True, slots=True)
class ValueType:
    """A single value.

    Args:
        expected: the allowed values in words, for errors.
        holds: whether a value is allowed.
    """

    expected: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ListType:
    """A list whose items are all of one type.

    Args:
        item: the type of every item.
        count: the length, or None for any.
    """

    item: FieldType
    count: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectType:
    """An object with named fields.

    Args:
        fields: the type of every field that must be there.
        optional: the type of every field that may be absent.
        others: the type of all further fields.
    """

    fields: Mapping[str, FieldType] = field(default_factory=dict)
    optional: Mapping[str, FieldType] = field(default_factory=dict)
    others: FieldType | None = None


@dataclass(frozen=True, slots=True)
class DependentType:
    """A type that depends on the value.

    Args:
        pick: maps a value to its type.
    """

    pick: Callable[[Any], FieldType]


FieldType = ValueType | ListType | ObjectType | DependentType


def field_faults(kind: FieldType, value: Any, name: str) -> Iterator[str]:
    """Yield what is wrong with a value, one "expected ..., got ..." for every wrong field.

    Args:
        kind: the type to check against.
        value: any JSON value.
        name: the name of the field, for the texts; "" for a whole record.
    """
    if isinstance(kind, DependentType):
        yield from field_faults(kind.pick(value), value, name)
    elif isinstance(kind, ValueType):
        if not kind.holds(value):
            yield _fault(kind.expected, name, value)
    elif isinstance(kind, ListType):
        if not isinstance(value, list) or kind.count not in (None, len(value)):
            yield _fault("a list" if kind.count is None else f"a list of {kind.count}", name, value)
        else:
            for number, item in enumerate(value):
                yield from field_faults(kind.item, item, f"{name}[{number}]")
    elif not isinstance(value, dict):
        yield _fault("an object", name, value)
    else:
        yield from _wrong_fields(kind, value, name)


def _wrong_fields(kind: ObjectType, value: dict[str, Any], name: str) -> Iterator[str]:
    known = {**kind.fields, **kind.optional}
    for part in kind.fields:
        if part not in value:
            yield f"expected a field {_inside(name, part)}, got none"
    for part, content in value.items():
        inner = known.get(part, kind.others)
        if inner is not None:
            yield from field_faults(inner, content, _inside(name, part))


def _inside(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _fault(expected: str, name: str, value: Any) -> str:
    return f"expected {expected} as {name}, got {json.dumps(value)[:_SHOWN]}"


def optional(kind: FieldType) -> DependentType:
    """Return the type of values that may be null instead."""
    return DependentType(lambda value: ANY if value is None else kind)


def whole_number(least: int, most: int = 10**12) -> ValueType:
    """Return the type of whole numbers in a range, both ends included."""
    return ValueType(
        f"a whole number of {least} to {most}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most,
    )


def number(least: float, most: float) -> ValueType:
    """Return the type of finite numbers in a range, both ends included."""
    return ValueType(
        f"a number of {least:g} to {most:g}",
        # a comparison with NaN is false
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most,
    )


ANY = ValueType("any value", lambda value: True)
TEXT = ValueType("a text", lambda value: isinstance(value, str))
SWITCH = ValueType("true or false", lambda value: isinstance(value, bool))
NAME = ValueType(
    "a name without separators of paths",
    lambda value: isinstance(value, str) and value.strip(".") != "" and not set(value) & set("/\\\0"),
)

"""Values of a wrong type for arguments, read off their annotations, and the check that each is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, signature
from typing import Any

import pytest

# a kind of number -> what is none, although Python computes with most of it
WRONG: dict[str, tuple[object, ...]] = {
    "int": (True, 1.5, math.nan, math.inf, "3"),
    "float": (True, math.nan, "0.5"),
    "bool": ("yes", 1, math.nan),
}
RANGES = {"Size": "int", "Count": "int", "Share": "float", "Positive": "float"}  # named annotations -> their types


def wrong_for(annotation: str) -> tuple[object, ...]:
    """Wrong values for a parameter that is annotated with numbers or truth values; none for any other.

    Args:
        annotation: as written, such as "int | None".
    """
    bare = re.sub(r"Annotated\[(\w+), .*?\)\]", r"\1", annotation)
    members = {RANGES.get(member.strip(), member.strip()) for member in bare.split("|")}
    values = [value for kind in WRONG if kind in members for value in WRONG[kind]]
    if "bool" in members:
        values = [value for value in values if not isinstance(value, bool)]
    if "float" in members:
        values = [value for value in values if not isinstance(value, float) or math.isnan(value)]
    if "str" in members:
        values = [value for value in values if not isinstance(value, str)]
    return tuple(values)


def cases(entry: Callable, names: Sequence[str] | None = None) -> Iterator[tuple[str, object]]:
    """(name, wrong value) for every parameter of a call that is annotated with numbers or truth values.

    Args:
        entry: a class or function whose annotations are texts.
        names: the parameters to take, None for all of them.
    """
    for name, parameter in signature(entry).parameters.items():
        if parameter.annotation is Parameter.empty or (names is not None and name not in names):
            continue
        yield from ((name, value) for value in wrong_for(str(parameter.annotation)))


def refused(call: Callable[..., Any], name: str, value: object, passed: str | None = None) -> None:
    """Fails unless a call refuses a value with a sentence that begins with the argument's name.

    Args:
        call: with all other arguments given.
        name: in the sentence.
        value: the wrong one.
        passed: the parameter that takes the value, None for `name`.
    """
    try:
        call(**{passed or name: value})
    except ValueError as error:
        assert str(error).startswith(f"{name}: expected "), error
    else:
        pytest.fail(f"{passed or name}={value!r} was taken")

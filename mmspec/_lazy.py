"""Lazy names: what a package hands out is imported when it is first asked for, so that importing the package costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    namespace: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    namespace: the package's `globals()`; a name that was asked for stays there.
    homes: public name -> the module that defines it, "module:attribute" where the attribute has another name. A module
    whose own name it is stands for itself: "core": "mmspec.core".
    """
    package = namespace["__name__"]

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, attribute = homes[name].partition(":")
        value: object = import_module(home)
        if attribute or home.rpartition(".")[2] != name:
            value = getattr(value, attribute or name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return find, names

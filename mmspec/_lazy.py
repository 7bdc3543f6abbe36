"""Lazy imports: a public name of a package is imported on first access, so that importing the package is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    namespace: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        namespace: The `globals()` of the package. Imported names are stored there.
        homes: Public name -> the module that defines it, or "module:attribute" where the attribute has another name. A
            module may be a public name too, as in "core": "mmspec.core".
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

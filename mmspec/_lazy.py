from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    namespace: dict[str, Any],  # the `globals()` of the package, where imported names are stored
    homes: Mapping[str, str],  # name -> its module, itself for a module, or "module:attribute" for another name
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package, which imports a public name on first access."""
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

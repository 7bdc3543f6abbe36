"""Write the index of methods: `python -m tests.methods.index`. It tells names and settings without an import of torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from mmspec.methods import registry
from mmspec.methods.registry import INDEX, KINDS, registered

_MARK = "\n@method("


def modules_with_methods() -> Iterator[str]:
    """The modules of the product that describe a method, in order of their names."""
    import mmspec
    from mmspec import imagegen, video, vlm

    homes = {one.__name__: Path(one.__file__).parent for one in (mmspec, imagegen, video, vlm)}
    found = {}
    for package, folder in homes.items():
        for file in folder.rglob("*.py"):
            inside = file.relative_to(folder).with_suffix("")
            if _MARK in file.read_text(encoding="utf-8"):
                parts = [part for part in inside.parts if part != "__init__"]
                found[".".join((package, *parts))] = None
    yield from sorted(found)


def index_text() -> str:
    """The index as JSON, a method a line."""
    for module in modules_with_methods():
        import_module(module)
    ours = [one for one in registered() if one.home.startswith("mmspec.")]
    ours.sort(key=lambda one: (KINDS.index(one.kind), one.facts.get("order", 100), one.name))
    lines = ",\n".join(json.dumps(our.record(), ensure_ascii=False) for our in ours)
    return f"[\n{lines}\n]\n"


def write_index() -> bool:
    """Write the index where it differs; whether it did."""
    file, text = Path(registry.__file__).with_name(INDEX), index_text()
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return False
    file.write_text(text, encoding="utf-8")
    return True


if __name__ == "__main__":
    sys.stdout.write("written\n" if write_index() else "unchanged\n")

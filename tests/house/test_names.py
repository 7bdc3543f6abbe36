"""A class name exists once in the product."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.house.tree import modules, nodes


def double_classes(sources: dict[str, str]) -> dict[str, list[str]]:
    """Class name -> the modules that define it, for every name that two modules define."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for name, source in sources.items():
        for node in nodes(source):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    return {name: places for name, places in homes.items() if len(places) > 1}


def test_a_class_name_exists_once() -> None:
    assert double_classes({name: path.read_text(encoding="utf-8") for name, path in modules()}) == {}


def test_a_name_of_two_modules_is_found() -> None:
    sources = {
        "mmspec.a": "class Draft: pass",
        "mmspec.b": "def f():\n    class Draft: pass",
        "mmspec.c": "class Tree: pass",
    }
    assert double_classes(sources) == {"Draft": ["mmspec.a", "mmspec.b"]}

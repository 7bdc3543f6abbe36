"""The size of files and the names of classes: a file holds one idea, and a class name exists once in the product."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.house.tree import modules, nodes

LONGEST = 600  # lines of a module
CRUMB = 60  # a shorter module is a face, a table, or on the list
# modules below CRUMB lines that hold an idea of their own
SHORT_IDEAS = {
    "mmspec.__main__",
    "mmspec._checkout",
    "mmspec._lazy",
}


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


def test_no_module_is_too_long_and_few_are_crumbs() -> None:
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines())
        for name, path in modules()
        if path.name != "__init__.py"
    }
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}
    assert len({name for name, count in lines.items() if count < CRUMB} - SHORT_IDEAS) <= 20

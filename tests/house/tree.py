"""What the checkout holds: its packages and modules, by the names they are imported under."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def roots() -> dict[str, Path]:
    """Import name -> folder of every tree of modules that exists, as the design fixes them."""
    planned = {
        "mmspec": "mmspec",
        "mmspec.imagegen": "imagegen",
        "mmspec.kernels": "kernels/ops",
        "mmspec.video": "video",
        "mmspec.vlm": "vlm",
    }
    return {name: ROOT / folder for name, folder in planned.items() if any((ROOT / folder).glob("*.py"))}


def modules() -> Iterator[tuple[str, Path]]:
    """(import name, file) of every module; a package has the name of its folder."""
    for name, folder in roots().items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            yield ".".join((name, *parts)), path


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source; every file is parsed once for all tests that read it."""
    return ast.parse(source)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree."""
    return tuple(ast.walk(parsed(source)))


def scripts() -> list[Path]:
    """Python files that ship with the project but are not imported from the package."""
    return [path for folder in ("demos", "kernels/bench") for path in sorted((ROOT / folder).rglob("*.py"))]

"""The public names of the package, where each is defined, and which of them say nothing about themselves.

Read from the sources: building the pages imports neither torch nor any model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# import name -> folder, where the two differ
FOLDERS = {
    "mmspec.imagegen": "imagegen",
    "mmspec.kernels": "kernels/ops",
    "mmspec.video": "video",
    "mmspec.vlm": "vlm",
}
# the packages of the reference, a page each -> what a reader writes for them
AREAS = {
    "mmspec": "mmspec",
    "mmspec.zoo": "mmspec.zoo",
    "mmspec.vlm": "mmspec.vlm",
    "mmspec.vlm.drafters": "mmspec.drafters",
    "mmspec.vlm.export": "mmspec.vlm.export",
    "mmspec.imagegen": "mmspec.imagegen",
    "mmspec.video": "mmspec.video",
    "mmspec.core": "mmspec.core",
    "mmspec.core.rules": "mmspec.core.rules",
    "mmspec.certify": "mmspec.certify",
    "mmspec.certify.adapters": "mmspec.certify.adapters",
}


@dataclass(frozen=True)
class Home:
    """Where a public name is defined: the module, and its name there, "" for the module itself."""

    module: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def file_of(module: str) -> Path:
    """The file of a module of this checkout.   Raises LookupError where there is none."""
    top = next((name for name in FOLDERS if f"{module}.".startswith(f"{name}.")), "mmspec")
    rest = [part for part in module.removeprefix(top).split(".") if part]
    place = ROOT.joinpath(FOLDERS.get(top, top), *rest)
    for file in (place / "__init__.py", place.with_suffix(".py")):
        if file.is_file():
            return file
    raise LookupError(f"{module} is no module of this checkout")


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(file_of(module).read_text(encoding="utf-8"))


def public(package: str) -> dict[str, Home]:
    """What a package hands out: its `_PUBLIC` table, or the names that its `__all__` lists."""
    tables = {node.targets[0].id: node.value for node in tree_of(package).body
              if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    if "_PUBLIC" not in tables:
        return {name: found(package, name) for name in ast.literal_eval(tables["__all__"])}
    homes: dict[str, Home] = {}
    for key, value in ast.literal_eval(tables["_PUBLIC"]).items():
        if isinstance(value, tuple):  # a module and its names
            homes |= {name: found(f"{package}.{key}", name) for name in value}
            continue
        module, _, name = value.partition(":")
        itself = not name and module.rpartition(".")[2] == key
        homes[key] = Home(module, "") if itself else found(module, name or key)
    return dict(sorted(homes.items()))


def found(module: str, name: str) -> Home:
    """Where a name of a module is defined, through however many modules it is imported from.   Raises LookupError."""
    for node in tree_of(module).body:
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if (one.asname or one.name) == name:
                    return found(_source(module, node), one.name)
        elif name in _defined(node):
            return Home(module, name)
    raise LookupError(f"{module} has no {name}")


def _source(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module
    inside = module.split(".") if file_of(module).name == "__init__.py" else module.split(".")[:-1]
    return ".".join([*inside[: len(inside) - node.level + 1], *filter(None, [node.module])])


def _defined(node: ast.stmt) -> set[str]:
    targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
    return {getattr(node, "name", None), *(one.id for one in targets if isinstance(one, ast.Name))}


def docstring(home: Home) -> str | None:
    """Of a module, class or function, or the string behind an assignment."""
    body = tree_of(home.module).body
    if not home.name:
        return ast.get_docstring(tree_of(home.module))
    at = next(number for number, node in enumerate(body) if home.name in _defined(node))
    if isinstance(body[at], ast.ClassDef | ast.FunctionDef):
        return ast.get_docstring(body[at])
    after = body[at + 1].value if at + 1 < len(body) and isinstance(body[at + 1], ast.Expr) else None
    return after.value if isinstance(after, ast.Constant) and isinstance(after.value, str) else None


def methods(node: ast.AST) -> list[ast.FunctionDef]:
    """The public methods and properties of a class; none of anything else."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return [one for one in body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]


def explained(sources: Collection[str]) -> frozenset[str]:
    """Names of methods and fields that a class says the meaning of, in its docstring or in theirs: protocols and bases
    say it for all that fill them."""
    classes = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    own = {one.name for node in classes for one in methods(node) if ast.get_docstring(one)}
    listed = (re.findall(r"((?:\w+, )*\w+): ", ast.get_docstring(node) or "") for node in classes)
    return frozenset(own | {name for found in listed for names in found for name in names.split(", ")})


@cache
def explained_here() -> frozenset[str]:
    files = [path for folder in ("mmspec", *FOLDERS.values()) for path in (ROOT / folder).rglob("*.py")]
    texts = (path.read_text(encoding="utf-8") for path in files)
    return explained([text for text in texts if "class " in text])


def silent(shown: str, home: Home, explained: Collection[str]) -> list[str]:
    """What of a public name has no docstring: itself, and methods whose meaning is told nowhere."""
    node = next((one for one in tree_of(home.module).body if home.name in _defined(one)), None)
    dumb = [one.name for one in methods(node) if not ast.get_docstring(one) and one.name not in explained]
    return ([] if docstring(home) else [shown]) + [f"{shown}.{name}" for name in dumb]


def undocumented() -> list[str]:
    """Public names of this checkout that say nothing, as a reader would write them."""
    return [one for package, title in AREAS.items() for name, home in public(package).items()
            for one in silent(f"{title}.{name}", home, explained_here())]  # fmt: skip

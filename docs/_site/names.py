"""The public names of the package, where each is defined, and those without a docstring. They are read from the
sources, so that building the pages imports neither torch nor any model."""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# import name -> folder, where the two differ
FOLDERS = {
    "mmspec.imagegen": "imagegen",
    "mmspec.kernels": "kernels/ops",
    "mmspec.video": "video",
    "mmspec.vlm": "vlm",
}
# the packages of the reference, a page each -> the name that a reader writes
AREAS = {
    "mmspec": "mmspec",
    "mmspec.zoo": "mmspec.zoo",
    "mmspec.vlm": "mmspec.vlm",
    "mmspec.vlm.drafters": "mmspec.drafters",
    "mmspec.vlm.export": "mmspec.vlm.export",
    "mmspec.imagegen": "mmspec.imagegen",
    "mmspec.video": "mmspec.video",
    "mmspec.core": "mmspec.core",
    "mmspec.core.round.rules": "mmspec.core.rules",
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
    """Return the names that a package hands out: its `_PUBLIC` table, its methods where it reads the registry, or its
    `__all__`."""
    tables = {
        node.targets[0].id: node.value
        for node in tree_of(package).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    if "_PUBLIC" not in tables:
        return {name: found(package, name) for name in ast.literal_eval(tables["__all__"])}
    homes: dict[str, Home] = {}
    for key, value in (ast.literal_eval(tables["_PUBLIC"]) | _classes_of_methods(package)).items():
        if isinstance(value, tuple):  # a module and its names
            homes |= {name: found(f"{package}.{key}", name) for name in value}
            continue
        module, _, name = value.partition(":")
        itself = not name and module.rpartition(".")[2] == key
        homes[key] = Home(module, "") if itself else found(module, name or key)
    return dict(sorted(homes.items()))


def _classes_of_methods(package: str) -> dict[str, str]:
    reads = (isinstance(node, ast.ImportFrom) and node.module == "mmspec.methods" for node in tree_of(package).body)
    if not any(reads):
        return {}
    index = json.loads((ROOT / "mmspec" / "methods" / "index.json").read_text(encoding="utf-8"))
    homes = (entry["home"].partition(":") for entry in index)
    return {name: home for home, _, name in homes if home.startswith(f"{package}.") and name[0].isupper()}


def found(module: str, name: str) -> Home:
    """Return where a name of a module is defined, through however many modules it is imported from."""
    for node in tree_of(module).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return found(_source(module, node), alias.name)
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
    return {getattr(node, "name", None), *(target.id for target in targets if isinstance(target, ast.Name))}


def node_of(home: Home) -> ast.stmt:
    return next(node for node in tree_of(home.module).body if home.name in _defined(node))


def docstring(home: Home) -> str | None:
    """Return that of a module, class or function, or the string behind an assignment."""
    if not home.name:
        return ast.get_docstring(tree_of(home.module))
    node, body = node_of(home), tree_of(home.module).body
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return ast.get_docstring(node)
    after = next((following for statement, following in pairwise(body) if statement is node), None)
    value = after.value if isinstance(after, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def methods(node: ast.ClassDef) -> dict[str, str]:
    """Return the public methods and properties of a class with their docstrings; a property's setter need not have any."""
    said: dict[str, str] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not item.name.startswith("_"):
            said[item.name] = said.get(item.name, "") + (ast.get_docstring(item) or "")
    return said


def explained(node: ast.ClassDef) -> set[str]:
    """Return the methods and fields that a class explains, in its docstring or in theirs."""
    fields = re.findall(r"((?:\w+, )*\w+): ", ast.get_docstring(node) or "")
    return {name for names in fields for name in names.split(", ")} | {
        name for name, told in methods(node).items() if told
    }


def lineage(home: Home) -> list[ast.ClassDef]:
    """Return a class and those of its bases that are of this checkout."""
    node, nodes = node_of(home), []
    for base in (ast.unparse(base).partition("[")[0] for base in node.bases):
        with suppress(LookupError):  # a base from elsewhere
            nodes += lineage(found(home.module, base))
    return [node, *nodes]


@cache
def protocols() -> tuple[ast.ClassDef, ...]:
    files = [path for folder in ("mmspec", *FOLDERS.values()) for path in (ROOT / folder).rglob("*.py")]
    texts = (path.read_text(encoding="utf-8") for path in files)
    nodes = (
        node for text in texts if "(Protocol" in text or ", Protocol" in text for node in ast.walk(ast.parse(text))
    )
    return tuple(
        node
        for node in nodes
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases)
    )


def silent(shown: str, home: Home) -> list[str]:
    """Return parts of a public name without a docstring: itself, and methods that neither its class, a base nor a
    protocol explains."""
    dumb = [] if docstring(home) else [shown]
    if not home.name or not isinstance(node_of(home), ast.ClassDef):
        return dumb
    classes = lineage(home)
    present = {name for node in classes for name in methods(node)}
    filled = [node for node in protocols() if methods(node) and methods(node).keys() <= present]
    told = {name for node in (*classes, *filled) for name in explained(node)}
    return dumb + [f"{shown}.{name}" for name in methods(classes[0]) if name not in told]


def undocumented() -> list[str]:
    return [
        gap
        for package, title in AREAS.items()
        for name, home in public(package).items()
        for gap in silent(f"{title}.{name}", home)
    ]

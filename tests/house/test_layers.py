"""Imports follow the layer table: arrows only point down."""

from __future__ import annotations

import ast
import sys

import pytest

from tests.house.tree import modules, nodes, scripts

MODELS = ("mmspec.imagegen", "mmspec.video", "mmspec.vlm")
BELOW_MODELS = ("mmspec._lazy", "mmspec.kernels", "mmspec.io", "mmspec.methods", "mmspec.core", "mmspec.training")
BELOW_ZOO = (*BELOW_MODELS, *MODELS)
LAYERS = {
    "mmspec._lazy": (),
    "mmspec.kernels": (),
    "mmspec.io": ("mmspec._lazy",),
    "mmspec.methods": (),
    "mmspec.core": ("mmspec._lazy", "mmspec.kernels", "mmspec.io", "mmspec.methods"),
    "mmspec.training": ("mmspec._lazy", "mmspec.io"),
    "mmspec.imagegen": BELOW_MODELS,
    "mmspec.video": BELOW_MODELS,
    "mmspec.vlm": BELOW_MODELS,
    "mmspec.zoo": BELOW_ZOO,
    "mmspec.drafters": ("mmspec._lazy", "mmspec.vlm"),
    "mmspec.attach": BELOW_ZOO,
    "mmspec.certify": BELOW_ZOO,
    "mmspec.estimate": BELOW_ZOO,
    "mmspec.run": (*BELOW_ZOO, "mmspec.zoo"),
    "mmspec.evaluate": (*BELOW_ZOO, "mmspec.drafters", "mmspec.zoo", "mmspec.estimate", "mmspec.run"),
    "mmspec.check": (*BELOW_ZOO, "mmspec.zoo", "mmspec.run"),
    "mmspec.web": (*BELOW_ZOO, "mmspec.zoo", "mmspec.run", "mmspec.evaluate"),
    "mmspec.cli": (
        *BELOW_ZOO,
        "mmspec.zoo",
        "mmspec.certify",
        "mmspec.estimate",
        "mmspec.run",
        "mmspec.evaluate",
        "mmspec.check",
        "mmspec.web",
    ),
    "mmspec.__main__": ("mmspec.io", "mmspec.cli"),
    "mmspec._checkout": (),
    "mmspec": ("mmspec._checkout", "mmspec._lazy"),
}
# imported by name when it is asked for: "zoo:NAME" stands for a folder of the zoo wherever weights are named
BY_NAME = {("mmspec.io.pretrained", "mmspec.zoo.files.registry")}
# what `import mmspec` itself reads
BARE = ("mmspec", "mmspec._checkout", "mmspec._lazy")
# top-level folders of the checkout that must only be reached through mmspec
FOLDERS = {"imagegen", "kernels", "video", "vlm", "demos", "tests"}


def layer_of(module: str) -> str | None:
    name = ".".join(module.split(".")[:2])
    return name if name in LAYERS else None


def imported(module: str, source: str, *, is_package: bool) -> set[str]:
    """Absolute names that `source`, the text of `module`, imports anywhere, also inside functions."""
    package = module if is_package else module.rpartition(".")[0]
    names: set[str] = set()
    for node in nodes(source):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
            # `from mmspec import vlm` reaches a layer, `from mmspec.vlm import x` is already one
            names.update(f"{base}.{alias.name}" if base == "mmspec" else base for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            # of an f-string the text before the first brace, which may name a room
            first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            text = first.value if isinstance(first, ast.Constant) else None
            if called in ("import_module", "__import__") and isinstance(text, str) and text != "mmspec.":
                names.add(text.rstrip("."))
    return names


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Imports of `source` that the table forbids to the layer of `module`."""
    layer = layer_of(module)
    if layer is None:
        return [f"{module} is in no layer of the table"]
    bad = []
    for name in sorted(imported(module, source, is_package=is_package)):
        top = name.partition(".")[0]
        if top in FOLDERS:
            bad.append(f"{module} imports {name}, which is only importable through mmspec")
        elif top == "mmspec":
            target = layer_of(name)
            public = layer in ("mmspec.evaluate", "mmspec.cli") or name == "mmspec.__version__"
            allowed = public if target in (None, "mmspec") else target == layer or target in LAYERS[layer]
            allowed = allowed or (module, name) in BY_NAME
            if not allowed:
                bad.append(f"{module} imports {name}, which its layer may not")
        elif layer == "mmspec.kernels" and top not in {"torch", "triton", *sys.stdlib_module_names}:
            bad.append(f"{module} imports {name}, but the ops may import torch and triton only")
        elif layer in BARE and top not in sys.stdlib_module_names:
            bad.append(f"{module} imports {name}, but importing mmspec must stay free of dependencies")
    return bad


def test_every_module_stays_inside_its_layer() -> None:
    bad = [
        line
        for name, path in modules()
        for line in violations(name, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    ]
    assert not bad, "\n".join(bad)


def test_scripts_import_the_package_not_its_folders() -> None:
    bad = []
    for path in scripts():
        names = imported("script", path.read_text(encoding="utf-8"), is_package=False)
        bad += [f"{path} imports {name}" for name in names if name.partition(".")[0] in FOLDERS - {"demos"}]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mmspec.kernels.draft_tree", "import numpy"),
        ("mmspec.kernels.draft_tree", "from mmspec.core import draft"),
        ("mmspec.core.round.loop", "from ...vlm import api"),
        ("mmspec.core.round.loop", "def f():\n    from mmspec import zoo"),
        ("mmspec.core.round.loop", "import importlib\nimportlib.import_module('mmspec.vlm')"),
        ("mmspec.core.round.loop", "import importlib\nimportlib.import_module(f'mmspec.vlm.{name}')"),
        ("mmspec.core.round.loop", "import mmspec"),
        ("mmspec.vlm.target", "from mmspec.zoo import world"),
        ("mmspec.vlm.target", "import mmspec.imagegen"),
        ("mmspec.vlm.target", "import vlm"),
        ("mmspec.zoo.build", "from mmspec.evaluate import captions"),
        ("mmspec.evaluate.engine.bench", "from mmspec.cli import app"),
        ("mmspec.stray", "import os"),
        ("mmspec", "import torch"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mmspec.kernels.draft_tree", "import torch\nimport triton.language as tl\nfrom . import weigh"),
        ("mmspec.core.round.loop", "from mmspec.kernels import select\nfrom .rules import token\nimport numpy"),
        ("mmspec.core.round.loop", "from mmspec import __version__"),
        (
            "mmspec.vlm.drafters.eagle",
            "from mmspec.core import draft\nfrom ..target import Target",
        ),
        ("mmspec.zoo.build", "from mmspec.vlm.drafters import eagle\nfrom mmspec.zoo.world import scene"),
        ("mmspec.evaluate.engine.bench", "import mmspec\nfrom mmspec import zoo"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Module -> the modules of the house that it imports anywhere: at its top, for types, or inside functions."""
    graph: dict[str, set[str]] = {name: set() for name in sources}
    for name, source in sources.items():
        for node in nodes(source):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    graph[name].add(whole if whole in sources else node.module)
        graph[name] = {other for other in graph[name] if other in sources and other != name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import one another, directly or through others."""
    reach: dict[str, set[str]] = {}
    for name in graph:
        seen, waiting = set(), list(graph[name])
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += graph[other]
        reach[name] = seen
    groups = {tuple(sorted(o for o in reach[n] if n in reach[o])) for n in graph if n in reach[n]}
    return [list(group) for group in sorted(groups)]


def test_modules_have_no_import_cycles() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in modules()}
    assert circles(import_graph(sources)) == []


def test_a_circle_through_type_hints_is_found() -> None:
    hint = "if TYPE_CHECKING:\n    from mmspec.core.a import A"
    sources = {"mmspec.core.a": "def f():\n    from mmspec.core import b", "mmspec.core.b": hint, "mmspec.core.c": hint}
    assert circles(import_graph(sources)) == [["mmspec.core.a", "mmspec.core.b"]]

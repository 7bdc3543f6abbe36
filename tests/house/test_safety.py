"""No module unpickles anything or runs code that came with a checkpoint."""

from __future__ import annotations

import ast

import pytest

from tests.house.tree import modules, nodes, scripts

FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# what the explicit convert commands unpickle with: it may, with weights_only
CONVERTERS = {"mmspec.io.loading"}
FORBIDDEN_CALLS = {"torch.load", "torch.jit.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load"}


def loads_weights_only(node: ast.AST) -> bool:
    """Whether `node` is a call torch.load(..., weights_only=True)."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "torch.load"
        and any(
            word.arg == "weights_only" and isinstance(word.value, ast.Constant) and word.value.value is True
            for word in node.keywords
        )
    )


def unsafe(source: str, *, converter: bool = False) -> list[str]:
    """Line-numbered findings in `source`."""
    found = []
    allowed = {id(node.func) for node in nodes(source) if converter and loads_weights_only(node)}
    for node in nodes(source):
        if id(node) in allowed:
            continue
        if isinstance(node, ast.Import):
            tops = {alias.name.partition(".")[0] for alias in node.names}
            found += [f"{node.lineno}: imports {top}" for top in tops & FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found += [f"{node.lineno}: imports {name}" for name in full & FORBIDDEN_CALLS]
            if node.module.partition(".")[0] in FORBIDDEN_MODULES:
                found.append(f"{node.lineno}: imports {node.module}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in FORBIDDEN_CALLS:
            found.append(f"{node.lineno}: uses {ast.unparse(node)}")
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                found.append(f"{node.lineno}: sets {node.arg}")
        elif isinstance(node, ast.Constant) and node.value == "trust_remote_code":
            found.append(f"{node.lineno}: names trust_remote_code")
    return found


def test_no_module_is_unsafe() -> None:
    paths = [*((path, name in CONVERTERS) for name, path in modules()), *((path, False) for path in scripts())]
    found = [
        f"{path}:{line}"
        for path, converter in paths
        for line in unsafe(path.read_text(encoding="utf-8"), converter=converter)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import joblib.numpy_pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import torch\nread = torch.load",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "f(trust_remote_code=flag)",
        "f(**{'trust_remote_code': True})",
    ],
)
def test_an_unsafe_line_is_found(source: str) -> None:
    assert unsafe(source)


def test_refusing_remote_code_by_name_is_allowed() -> None:
    assert unsafe("f(trust_remote_code=False)") == []


def test_a_convert_command_may_load_weights_only() -> None:
    careful, careless = "torch.load(path, weights_only=True)", "torch.load(path, weights_only=flag)"
    assert unsafe(careful, converter=True) == []
    assert unsafe(careful) and unsafe(careless, converter=True) and unsafe("import pickle", converter=True)

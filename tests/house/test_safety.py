"""No module unpickles anything or runs code that came with a checkpoint."""

from __future__ import annotations

import ast

import pytest

from tests.house.tree import modules, scripts

FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {"torch.load", "torch.jit.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load"}


def unsafe(source: str) -> list[str]:
    """Line-numbered findings in `source`."""
    found = []
    for node in ast.walk(ast.parse(source)):
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
    paths = [*(path for _, path in modules()), *scripts()]
    found = [f"{path}:{line}" for path in paths for line in unsafe(path.read_text(encoding="utf-8"))]
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

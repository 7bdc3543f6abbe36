"""Files are read in one place and models of transformers loaded in one, so that every error names its file."""

from __future__ import annotations

import ast

import pytest

from tests.house.tree import modules, nodes, scripts

READERS, CHECKPOINTS = "mmspec.io.readers", "mmspec.io.checkpoints"
# what opens safetensors and JSON, under any name it is imported from
OPENERS = {"load_file", "safe_open", "load_model", "read_text", "read_bytes"}
# the image gate, which reads pictures, the table of this machine's processor, and the index of methods beside its module
ELSEWHERE = {
    "mmspec.io.images": {"read_bytes"},
    "mmspec.evaluate.base.provenance": {"read_text"},
    "mmspec.methods.registry": {"read_text"},
}


def called(node: ast.Call) -> tuple[str, str]:
    """The name of what is called and, in words, what it is called on."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr, ast.unparse(node.func.value)
    return (node.func.id, "") if isinstance(node.func, ast.Name) else ("", "")


def own_classes(sources: list[str]) -> set[str]:
    return {node.name for source in sources for node in nodes(source) if isinstance(node, ast.ClassDef)}


def direct(source: str, own: set[str], *, module: str = "") -> list[str]:
    """Line-numbered calls of `source` that belong into the one place."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safetensors"):
            names = {alias.name for alias in node.names} - {"save_file", "SafetensorError"}
            if names and module != READERS:
                found.append(f"{node.lineno}: imports {', '.join(sorted(names))}")
        if not isinstance(node, ast.Call):
            continue
        name, of = called(node)
        if (
            name == "from_pretrained"
            and module != CHECKPOINTS
            and not ({of.split(".")[-1], of} & {*own, "cls", "nn.Embedding"})
        ):
            found.append(f"{node.lineno}: {of}.from_pretrained")
        elif name == "getattr" and any(isinstance(a, ast.Constant) and a.value == "from_pretrained" for a in node.args):
            found.append(f"{node.lineno}: asks for from_pretrained by name")
        elif (name, of) == ("load", "json") or (of and name in OPENERS - ELSEWHERE.get(module, set())):
            if module != READERS:
                found.append(f"{node.lineno}: {of}.{name}")
    return found


def test_nothing_else_reads_files_or_loads_models() -> None:
    sources = {(name, path): path.read_text(encoding="utf-8") for name, path in modules()}
    sources |= {("", path): path.read_text(encoding="utf-8") for path in scripts()}
    own = own_classes(list(sources.values()))
    bad = [f"{path}:{line}" for (name, path), text in sources.items() for line in direct(text, own, module=name)]
    told = "read files through mmspec.io.readers, load models of transformers through mmspec.io.checkpoints"
    assert not bad, "\n".join([told, *bad])


@pytest.mark.parametrize(
    "source",
    [
        "from safetensors.torch import load_file",
        "from safetensors import safe_open",
        "import safetensors.torch as st\nst.load_file(path)",
        "json.loads(path.read_text())",
        "json.load(open(path))",
        "AutoModel.from_pretrained(folder)",
        "transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)",
        "getattr(transformers, name).from_pretrained(folder)",
        "getattr(kind, 'from_pretrained')(folder)",
    ],
)
def test_a_direct_call_is_found(source: str) -> None:
    assert direct(source, {"Mine"})


@pytest.mark.parametrize(
    "source",
    [
        "from safetensors.torch import save_file",
        "Mine.from_pretrained(folder)",
        "package.Mine.from_pretrained(folder)",
        "nn.Embedding.from_pretrained(rows)",
        "json.loads(line)",
        "read_json(path)",
    ],
)
def test_an_allowed_call_passes(source: str) -> None:
    assert direct(source, {"Mine"}) == []

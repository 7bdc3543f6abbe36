"""Files are written through one place, which leaves them whole or absent and names the one that could not be written."""

from __future__ import annotations

import ast

import pytest

from tests.house.tree import modules, parsed

PLACE = "mmspec.io.files"
WRITERS = {"write_text", "write_bytes", "save_file", "save_model", "save", "savefig"}
GUARDS = {"replacing", "writing"}
KEPT_IN_MEMORY = {"figure.savefig"}  # into a buffer, which is written through the place
OWN = {"run_state.save", "self.save"}  # of the training's states


def unguarded(source: str) -> list[str]:
    """Line-numbered calls of `source` that write a file outside a guard's block."""
    found = []

    def visit(node: ast.AST, guarded: bool) -> None:
        if isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            guarded = guarded or any(ast.unparse(call.func) in GUARDS for call in calls)
        if isinstance(node, ast.Call) and not guarded and writes(node):
            found.append(f"{node.lineno}: {ast.unparse(node.func)}")
        for child in ast.iter_child_nodes(node):
            visit(child, guarded)

    visit(parsed(source), False)
    return found


def writes(call: ast.Call) -> bool:
    """Whether a call writes a file, as far as its name and mode tell."""
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if last == "open":
        values = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
        return any(
            isinstance(value, ast.Constant)
            and value.value
            and set(str(value.value)) & set("wax+")
            and set(str(value.value)) <= set("rwaxbt+")
            for value in values
        )
    return last in WRITERS and name not in KEPT_IN_MEMORY | OWN


def test_nothing_else_writes_files() -> None:
    sources = {path: path.read_text(encoding="utf-8") for name, path in modules() if name != PLACE}
    found = [f"{path}:{line}" for path, source in sources.items() for line in unguarded(source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "path.write_text('x')",
        "open(path, 'w')",
        "path.open('a')",
        "path.open(mode='xb')",
        "save_file(tensors, path)",
        "with naming(path):\n    image.save(path)",
    ],
)
def test_a_direct_write_is_found(source: str) -> None:
    assert unguarded(source)


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "path.open('rb')",
        "write_text_atomic(path, 'x')",
        "with replacing(path) as temporary, open(temporary, 'w') as file:\n    file.write('x')",
        "with replacing(path) as temporary:\n    if x:\n        image.save(temporary)",
    ],
)
def test_a_guarded_write_passes(source: str) -> None:
    assert unguarded(source) == []

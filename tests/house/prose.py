"""Patterns of hard prose in the product: `make lint` refuses each of them, `python tests/house/prose.py --rooms` counts.

Docstrings are read for all patterns, comments for the words alone, names for participles that hide a noun. Sections
(`Args:` and the like) belong to the names that users call: exported names, classes of `@method` and the settings that
they take, commands, protocols.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_site"))

from names import AREAS, file_of, public  # noqa: E402

ROOMS = ("mmspec", "kernels", "vlm", "imagegen", "video", "demos")
PARTICIPLES = {"told", "said", "asked", "found", "made", "kept", "given", "taken"}
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples", "Note", "Shapes")

WORDS = {
    "what": re.compile(r"\bwhat\b(?!-)", re.IGNORECASE),
    "one": re.compile(
        r"\bones\b"
        r"|\bone(?=[.;,:)]| (?:that|which|who|whose|where|is|has|does|with|without|from|made|drawn|kept|given|named)\b)"
        r"|\b(?:the|this|that|each|every|another|last|first|next|own|other|new|old|same|plain|whole|single|such an?) one\b",
        re.IGNORECASE,
    ),
}
LAYOUT = {
    "packed": re.compile(r"\S {2,}\S"),
    "inline": re.compile(r"\b(?:Raises|Returns) [A-Za-z`]"),
    "unsectioned": re.compile(r"^[a-z_]\w*(?:, [a-z_]\w*)*: \S"),
}
ENTRY = re.compile(r"^(\w+)(?: \(.*?\))?: (.+)$")
FILLERS = {"a", "an", "the", "of", "its", "this", "to", "is", "that", "for", "in", "whether"}


@cache
def exported() -> set[tuple[Path, str]]:
    """(file, name) of everything that packages hand out, and of the classes and functions that methods take settings from."""
    homes = (home for package in AREAS for home in public(package).values() if home.name)
    names = {(file_of(home.module), home.name) for home in homes}
    texts = {path: path.read_text() for folder in ROOMS for path in (ROOT / folder).rglob("*.py")}
    taken = {name for text in texts.values() for name in re.findall(r"\btakes=(\w+)", text)}
    defined = re.compile(r"^(?:def|class) (\w+)", re.M)
    return names | {(path, name) for path, text in texts.items() for name in taken.intersection(defined.findall(text))}


def has_sections(path: Path, node: ast.AST) -> bool:
    """Return whether users call a class or function, whose docstring may therefore have sections."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    bases = [ast.unparse(base) for base in getattr(node, "bases", ())]
    return (
        (path, node.name) in exported()
        or any(text.startswith(("method(", "command(", "app.c")) for text in decorators)
        or any(base.startswith("Protocol") for base in bases)
    )


def hits(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (pattern, line, text) of every hit in a file."""
    text = path.read_text()
    tree = ast.parse(text)
    own_names = {id(name) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for name in public_names(node)}
    for node, is_called in documented(path, tree, False):
        first = node.body[0]
        yield from docstring_hits(first.value.value, first.lineno)
        if not is_called:
            for number, line in enumerate(first.value.value.splitlines(), first.lineno):
                if line.strip().endswith(":") and line.strip(" :") in SECTIONS:
                    yield "section", number, line.strip()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and id(node) not in own_names
            and node.name.strip("_") in PARTICIPLES
        ):
            yield "name", node.lineno, node.name
        elif (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and id(node) not in own_names
            and node.id.strip("_") in PARTICIPLES
        ):
            yield "name", node.lineno, node.id
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from (
                (name, token.start[0], token.string) for name, word in WORDS.items() if word.search(token.string)
            )


def documented(path: Path, node: ast.AST, is_called: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the definitions with a docstring below a node, and whether users call them or the class around them."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        is_called = is_called or has_sections(path, node)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
        yield node, is_called
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from documented(path, child, is_called)


def public_names(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield the fields and properties of a class, whose names belong to its users."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign):
            yield part.target
        elif isinstance(part, ast.FunctionDef) and any(ast.unparse(d) == "property" for d in part.decorator_list):
            yield part


def docstring_hits(docstring: str, first: int) -> Iterator[tuple[str, int, str]]:
    """Yield the hits of one docstring whose first line is line `first` of its file; code in fences is left out."""
    section, fenced = False, False
    for number, line in enumerate(docstring.splitlines(), first):
        words = line.strip()
        fenced ^= words.startswith("```")
        if fenced or words.startswith((">>>", "|")):
            continue
        section = words.rstrip(":") in SECTIONS or (section and (not words or line.startswith("        ")))
        entry = ENTRY.match(words) if section else None
        if entry and set(re.findall(r"[a-z]+", entry[2].lower())) - FILLERS <= set(entry[1].lower().split("_")):
            yield "repeated", number, words
        prose = re.sub(r"`[^`]*`", "``", words)
        yield from ((name, number, words) for name, word in WORDS.items() if word.search(prose))
        if LAYOUT["packed"].search(prose):
            yield "packed", number, words
        if LAYOUT["inline"].search(prose) and number != first:
            yield "inline", number, words
        if not section and number != first and LAYOUT["unsectioned"].search(words):
            yield "unsectioned", number, words


def room(path: Path) -> str:
    """The room of a file: a package of `mmspec`, or a folder of the top level."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "mmspec" and len(parts) > 2 else parts[0]


def main(arguments: list[str]) -> int:
    """Print hits, or their counts by room; return 1 where there is a hit."""
    paths = [Path(argument).resolve() for argument in arguments if not argument.startswith("--")]
    files = sorted(
        file
        for path in paths or [ROOT / name for name in ROOMS]
        for file in ([path] if path.is_file() else path.rglob("*.py"))
    )
    counts: dict[str, Counter] = {}
    for file in files:
        for pattern, line, text in hits(file):
            counts.setdefault(room(file), Counter())[pattern] += 1
            if "--rooms" not in arguments:
                print(f"{file.relative_to(ROOT)}:{line}: {pattern}: {text}")
    if "--rooms" in arguments:
        for name, counter in sorted(counts.items()):
            print(
                f"{name:20}",
                "  ".join(f"{key} {counter[key]}" for key in (*WORDS, *LAYOUT, "name", "section", "repeated")),
            )
    print("total", dict(sum(counts.values(), Counter())))
    return bool(counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

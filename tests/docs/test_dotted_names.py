"""Every dotted name that a page mentions leads somewhere in a fresh process."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.house.tree import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
# names stand in code; "mmspec.readthedocs", files and versions do not
NAME = re.compile(r"(?<![\w/.-])mmspec(?:\.[A-Za-z_]\w*)+(?![\w-])")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
FILES = ("py", "md", "json", "jsonl", "toml", "svg", "png", "yml", "whl")

RESOLVE = """
import importlib, json, sys
missing = {}
for name, is_path in json.load(sys.stdin):
    value, parts = importlib.import_module("mmspec"), name.split(".")[1:]
    for number, part in enumerate(parts):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                assert is_path, "no attribute after `import mmspec` alone"
                value = importlib.import_module(".".join(["mmspec", *parts[: number + 1]]))
            except (AssertionError, ImportError) as error:
                missing[name] = str(error)
                break
print(json.dumps(missing))
"""


def mentioned() -> dict[tuple[str, bool], set[str]]:
    """Return (name, whether it may be the path of a module) -> pages. A call in a block of code is no path."""
    names: dict[tuple[str, bool], set[str]] = {}
    for page in PAGES:
        for code in CODE.findall(page.read_text(encoding="utf-8")):
            lines = code.splitlines() if code.startswith("```") else [code]
            for line in lines:
                is_path = len(lines) == 1 or line.lstrip().startswith(("from ", "import ", "mmspec ")) or " -m " in line
                for name in NAME.findall(line):
                    if name.rpartition(".")[2] not in FILES:
                        names.setdefault((name, is_path), set()).add(page.name)
    return names


def test_dotted_names_of_pages_resolve() -> None:
    names = mentioned()
    assert len(names) > 60 and any(name.startswith("mmspec.methods.") for name, _ in names)
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE], input=json.dumps(sorted(names)), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    missing = json.loads(done.stdout)
    assert not missing, missing

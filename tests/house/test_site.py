"""The documentation site: every public name has a docstring, every page a place, and nothing is fetched to read it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.house.tree import ROOT

HOOKS = ROOT / "docs" / "_site"
PARTS = ("docs", "mmspec", "imagegen", "kernels", "video", "vlm", "demos", "mkdocs.yml", "BENCHMARKS.md",
         "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")  # fmt: skip
builds = pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None,
    reason='needs the extra docs: pip install -e ".[docs]"',
)


def names_module(name: str = "names") -> ModuleType:
    """docs/_site/names.py, read anew: it keeps what it has parsed."""
    spec = spec_from_file_location(name, HOOKS / "names.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


NAMES = names_module()


def settings() -> dict:
    return yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), yaml.SafeLoader)


def test_every_public_name_has_a_docstring() -> None:
    assert not NAMES.undocumented(), "public names without a docstring"


@pytest.mark.parametrize("package", sorted(NAMES.AREAS))
def test_the_reference_covers_the_public_names_of_the_package(package: str) -> None:
    module, homes = import_module(package), NAMES.public(package)
    assert set(homes) == set(module.__all__) - {"__version__"}
    for name, home in homes.items():
        there = import_module(home.module)
        assert getattr(module, name) is (getattr(there, home.name) if home.name else there)


PLANTED = {
    "a function": ("def made():\n    return 1", "mmspec.made"),
    "a class": ("class made:\n    pass", "mmspec.made"),
    "a method": ('class made:\n    """Told."""\n    def odd(self):\n        return 1', "mmspec.made.odd"),
    "a property": (
        'class made:\n    """Told."""\n    @property\n    def odd(self):\n        return 1',
        "mmspec.made.odd",
    ),
    "a value": ("made = 1", "mmspec.made"),
    "a value before a number": ("made = 1\n2", "mmspec.made"),
    "a name from elsewhere": ("from mmspec.further import made", "mmspec.made"),
    "a method that a stranger explains": (
        'class made:\n    """Told."""\n    def strange(self):\n        return 1',
        "mmspec.made.strange",
    ),
    "a method of half a protocol": (
        'class made:\n    """Told."""\n    def half(self):\n        return 1',
        "mmspec.made.half",
    ),
    "a method of a base that says nothing": (
        'from mmspec.further import Base\nclass made(Base):\n    """Told."""\n    def dumb(self):\n        return 1',
        "mmspec.made.dumb",
    ),
}
TOLD = (
    'def made():\n    """Told."""',
    'class made:\n    """Told."""\n    def _own(self):\n        return 1',
    'class made:\n    """Told."""\n    def known(self):\n        return 1',
    'class made:\n    """odd: what it is."""\n    def odd(self):\n        return 1',
    'class made:\n    """Told."""\n    @property\n    def odd(self):\n        """Told."""\n'
    "    @odd.setter\n    def odd(self, value):\n        pass",
    'from mmspec.further import Base\nclass made(Base):\n    """Told."""\n    def kept(self):\n        return 1',
    'from mmspec.further import Base\nclass made(Base[int]):\n    """Told."""\n    def field(self):\n        return 1',
    'made = 1\n"""Told."""',
    "from mmspec.further import told as made",
)
# what is explained elsewhere, and by whom
FURTHER = '''
from typing import Protocol

def made():
    return 1

def told():
    """Told."""

class Known(Protocol):
    def known(self):
        """Told for all that have it."""

class Wider(Protocol):
    def half(self):
        """Told for those that have the other too."""
    def other(self):
        """Told."""

class Stranger:
    """strange: a field of another class."""

class Base:
    """field: told for its subclasses."""
    def kept(self):
        """Told."""
    def dumb(self):
        return 1
'''


def planted(tmp_path: Path, source: str) -> list[str]:
    """What is found in a checkout of one package that hands out `made`."""
    names = names_module("planted")
    names.ROOT, names.FOLDERS, names.AREAS = tmp_path, {}, {"mmspec": "mmspec"}
    (tmp_path / "mmspec").mkdir()
    (tmp_path / "mmspec" / "__init__.py").write_text('_PUBLIC = {"made": "mmspec.module"}\n')
    (tmp_path / "mmspec" / "module.py").write_text(source)
    (tmp_path / "mmspec" / "further.py").write_text(FURTHER)
    return names.undocumented()


@pytest.mark.parametrize(("source", "name"), PLANTED.values(), ids=list(PLANTED))
def test_an_undocumented_name_is_found(tmp_path: Path, source: str, name: str) -> None:
    assert planted(tmp_path, source) == [name]


@pytest.mark.parametrize("source", TOLD)
def test_a_documented_name_passes(tmp_path: Path, source: str) -> None:
    assert planted(tmp_path, source) == []


def test_folders_are_those_of_the_checkout() -> None:
    from mmspec._checkout import FOLDERS

    assert NAMES.FOLDERS == FOLDERS


def test_every_page_has_a_place_in_the_navigation() -> None:
    def leaves(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [leaf for one in (entry.values() if isinstance(entry, dict) else entry) for leaf in leaves(one)]

    listed = leaves(settings()["nav"])
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed)) and pages <= set(listed)
    assert {f"reference/{title}.md" for title in NAMES.AREAS.values()} == {
        page for page in listed if page.startswith("reference/")
    }


def test_the_build_is_strict_and_fetches_nothing() -> None:
    site = settings()
    assert site["strict"] is True and site["theme"]["font"] is False
    assert set(site["validation"].values()) == {"warn"}  # which a strict build takes for an error
    shown = [*site.get("extra_css", ()), *site.get("extra_javascript", ())]
    assert shown and not any("//" in page_index for page_index in shown)
    for file in (ROOT / "docs").rglob("*"):
        if file.suffix in (".css", ".svg"):
            foreign = re.sub(r'xmlns="[^"]*"', "", file.read_text(encoding="utf-8"))
            assert "http" not in foreign and "@import" not in foreign, file


def build(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(out)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@builds
@pytest.mark.whole
def test_it_builds_and_a_broken_link_or_a_silent_name_does_not(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    skipped = shutil.ignore_patterns("weights", "__pycache__")
    for part in PARTS:
        whole = ROOT / part
        shutil.copytree(whole, copy / part, ignore=skipped) if whole.is_dir() else shutil.copy(whole, copy / part)
    done = build(copy, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 30
    fetched = re.compile(r"<(?:link|script|img|source)[^>]*(?:src|href)=[\"']?(?:https?:)?//")
    assert not [path.name for path, text in pages.items() if fetched.search(text)]
    assert "round-title" in pages[tmp_path / "site" / "concepts" / "round.html"]  # the drawing stands in the page
    core = re.sub("<[^>]+>", "", pages[tmp_path / "site" / "reference" / "mmspec.core.html"])
    assert "ConfidenceStop(threshold: Share = 0.4" in core  # a class shows what it takes

    page = copy / "docs" / "quickstart.md"
    whole = page.read_text(encoding="utf-8")
    broken = ("[there](nowhere.md)", "[there](images.md#no-heading)", "[`there`][mmspec.nothing]")
    page.write_text("\n\n".join((whole, *broken)))
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0 and "Aborted with 3 warnings in strict mode" in done.stderr + done.stdout
    assert all(name in done.stderr for name in ("nowhere.md", "no-heading", "mmspec.nothing"))
    page.write_text(whole)

    tree = copy / "mmspec" / "core" / "round" / "tree.py"
    tree.write_text(tree.read_text(encoding="utf-8").replace('"""The number of nodes N, the root included."""', "..."))
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0 and "mmspec.core.Tree.nodes" in done.stderr

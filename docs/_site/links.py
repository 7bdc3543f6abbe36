"""Hook of mkdocs: pages that lie outside docs/ join the site, and links between pages hold in both places. A module
that a page links to is copied to `source/` of the site, as text; the link of a package leads to its `__init__.py`."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# file of the repository -> page of the site
JOINED = {
    "BENCHMARKS.md": "house.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)")
_DRAWN = re.compile(r"^!\[[^\]]*\]\(([^)]+\.svg)\)$", re.M)
# a block that holds the name of a file and nothing else
_SHOWN = re.compile(r"(?<=^```python\n)# (\S+\.py)\n(?=```$)", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, place in JOINED.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    for module in sorted(linked_modules(Path(config.docs_dir))):
        files.append(
            File.generated(config, f"source/{module}.txt", content=(ROOT / module).read_text(encoding="utf-8"))
        )
    return files


def linked_modules(docs: Path) -> set[str]:
    """Return the modules of the package that pages under `docs` link to, as paths in the repository."""
    modules: set[str | None] = set()
    for page in docs.rglob("*.md"):
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            modules.add(module_of(os.path.normpath(page.relative_to(ROOT).parent / link)))
    return {module for module in modules if module}


def module_of(path: str) -> str | None:
    """Return the file of a module or package at `path` in the repository, outside docs/; None for everything else."""
    file = ROOT / path
    file = file / "__init__.py" if file.is_dir() else file
    inside = file.is_file() and file.suffix == ".py" and not path.startswith(("docs", "."))
    return str(file.relative_to(ROOT)) if inside else None


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with the site's links and files, and with drawings in the text, where they take the theme's
    colours."""
    place = page.file.src_uri
    at = next((source for source, joined in JOINED.items() if joined == place), f"docs/{place}")
    markdown = _LINK.sub(lambda link: moved(link[0], at, place), markdown)
    markdown = _SHOWN.sub(lambda shown: (ROOT / shown[1]).read_text(encoding="utf-8"), markdown)
    folder = (Path(config.docs_dir) / place).parent
    return _DRAWN.sub(lambda drawn: f"<figure>\n{(folder / drawn[1]).read_text(encoding='utf-8')}</figure>", markdown)


def moved(link: str, source: str, place: str) -> str:
    """Return a relative link of the file `source` of the repository as the page `place` of the site writes it. A link
    to no page of the site stays as it is, so that a strict build reports it."""
    target = os.path.normpath(PurePosixPath(source).parent / link)
    there = JOINED.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
    if there is None and (module := module_of(target)):
        there = f"source/{module}.txt"
    if there is None:
        return link
    return os.path.relpath(there, PurePosixPath(place).parent)

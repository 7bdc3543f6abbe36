"""Hook of mkdocs: a page of the reference for each package, made of its public names. It stops at a name without a
docstring."""

from __future__ import annotations

import re
import shutil
import sys
from functools import cache
from os.path import commonprefix
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from names import AREAS, FOLDERS, ROOT, Home, docstring, public, undocumented  # noqa: E402

TREE = ROOT / "build" / "reference"  # where mkdocs.yml sends the reader of docstrings
# inline code that may be a name, with arguments or without, and is no link yet
_NAMED = re.compile(r"(?<!\[)`([a-z_]+(?:\.\w+)+)(?:\([^`]*\))?`(?!\])")


def on_startup(command: str, dirty: bool) -> None:
    if silent := undocumented():
        raise PluginError(f"expected a docstring for every public name, got none for {', '.join(silent)}; write them")
    gathered(TREE)


def gathered(tree: Path) -> None:
    """Copy the sources below `tree` as an installed mmspec has them; in a checkout some packages lie beside `mmspec/`."""
    shutil.rmtree(tree, ignore_errors=True)
    for name, folder in {"mmspec": "mmspec", **FOLDERS}.items():
        for file in (ROOT / folder).rglob("*.py"):
            place = tree.joinpath(*name.split("."), file.relative_to(ROOT / folder))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for package in AREAS:
        files.append(File.generated(config, f"reference/{AREAS[package]}.md", content=reference_page(package)))
    return files


RANGES = (
    "In signatures, `Size` is a whole number from 1, `Count` from 0, `Share` a number from 0 to 1, `Positive` a number "
    "above 0."
)


def reference_page(package: str) -> str:
    """Return Markdown: the package, and every name it hands out; a name that another page has is a link to there."""
    title, lines, shown = AREAS[package], [], []
    for name, home in public(package).items():
        if not home.name:
            link = f"[`{title}.{name}`]({AREAS[home.path]}.md)" if home.path in AREAS else f"`{title}.{name}`"
            lines.append(f"- {link}: {first_sentence(home)}")
        elif page_of(home) != package:
            lines.append(f"- [`{title}.{name}`][{home.path}]: {first_sentence(home)}")
        else:
            shown.append(f"::: {home.path}\n    options:\n      heading: {name}\n      toc_label: {name}")
    opening = [f"# {title}", first_sentence(Home(package, "")), *([RANGES] if shown else [])]
    return "\n\n".join([*opening, "\n".join(lines), *shown]) + "\n"


def first_sentence(home: Home) -> str:
    told = (docstring(home) or "").partition("\n\n")[0].replace("\n", " ")
    sentence = told.partition(". ")[0]
    return sentence if sentence.endswith("?") else sentence.rstrip(".") + "."


def page_of(home: Home) -> str:
    """Return the package on whose page a name stands: `mmspec` itself, else the nearest to where it is defined."""
    packages = [package for package in AREAS if home in public(package).values()]
    near = {package: len(commonprefix([f"{package}.", home.path])) for package in packages}
    return "mmspec" if "mmspec" in near else max(near, key=near.__getitem__)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Public names in a page's prose, `mmspec.core.Draft` or `imagegen.SJD(window=16)`, become links to the reference."""
    fenced, lines = False, []
    for line in markdown.splitlines():
        fenced ^= line.lstrip().startswith("```")
        prose = not (fenced or line.startswith(("#", "    ", ":::", "```")))
        lines.append(_NAMED.sub(_link, line) if prose else line)
    return "\n".join(lines) + "\n"


def _link(code: re.Match[str]) -> str:
    path = paths().get(code[1])
    return code[0] if path is None else f"[{code[0]}][{path}]"


@cache
def paths() -> dict[str, str]:
    """How a page may write a public name -> where it is defined."""
    found = {}
    for package, title in AREAS.items():
        for name, home in public(package).items():
            if home.name:
                found[f"{title}.{name}"] = found[f"{title.removeprefix('mmspec.')}.{name}"] = home.path
    return found

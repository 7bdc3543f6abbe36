"""Write the tables of methods and of published drafters in the docs: `python -m tests.methods.page`.

Figures are read off the pages of the benches.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mmspec.methods import MethodInfo, methods
from mmspec.methods.registry import KINDS
from mmspec.vlm.drafters.published import PUBLISHED

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "methods.md", DOCS / "published.md")
PLACE = re.compile(r"(<!-- (\w+): written by python -m tests.methods.page -->\n).*(\n<!-- \2: end -->)", re.S)
WORDS = {"vlm": "text", "image": "images", "continuous": "continuous images", "video": "videos"}
# the pages whose first table times a domain's methods; the first that has a method counts
SPEED = {
    "vlm": ("vlm-drafters", "vlm-methods", "vlm-blocks", "vlm-hybrid", "vlm-real"),
    "image": ("image-speed", "image-quality"),
    "continuous": ("continuous-speed", "continuous-published"),
    "video": ("video-speed",),
}
HEADS = {
    "drafter": "Drafters of text. All are exact, whatever they draft; `needs` says which want trained weights.",
    "decoding": "Decodings of images and videos.",
    "rule": "Rules decide which drafted values stay. An exact rule keeps the distribution of the target.",
    "router": "Routers decide which blocks of a video stay.",
    "controller": "Length controllers decide how much is drafted.",
    "schedule": "Schedules of the models' own sampling.",
    "shape": "Shapes of the drafts of trained drafters, as in `eagle:shape=(best:nodes=16)`.",
}


def tables() -> str:
    """The tables of all kinds, as Markdown."""
    parts = []
    for kind in KINDS:
        if found := methods(kind=kind):
            rows = [f"## {kind.capitalize()}s", "", HEADS[kind], ""]
            rows += ["| method | for | output | what it does | needs | measured |", "|---|---|---|---|---|---|"]
            parts.append("\n".join([*rows, *map(_row, found)]))
    return "\n\n".join(parts) + "\n"


def _row(one: MethodInfo) -> str:
    where = ", ".join(WORDS[domain] for domain in one.domains)
    paper = f" (*{one.paper}*)" if one.paper else ""
    cells = (
        f"`{one.name}`: {one.title}",
        where,
        "exact" if one.exact else "relaxed",
        one.about + paper,
        ", ".join(one.needs) or "-",
        measured(one) or "-",
    )
    return "| " + " | ".join(cells) + " |"


def measured(one: MethodInfo) -> str:
    """The fastest row of a method against plain decoding, with a link to its page; "" where no page has the method."""
    for domain in one.domains:
        for page in SPEED[domain]:
            found = [(ratio, title) for title, ratio in first_table(page) if _names(one, title)]
            if found:
                ratio, title = max(found)
                return f"[{ratio:.2f}x](benchmarks/{page}.md) ({title})"
    return ""


def _names(one: MethodInfo, title: str) -> bool:
    """Whether a row is of the method: its title and settings alone, not something else beside it."""
    return re.match(rf"{re.escape(one.title)}(?![\w+-])", title) is not None and " + " not in title


def first_table(page: str) -> Iterator[tuple[str, float]]:
    """The titles of a page's first table and how many times as fast as plain decoding they are."""
    lines = iter((DOCS / "benchmarks" / f"{page}.md").read_text(encoding="utf-8").splitlines())
    head = next((line for line in lines if line.startswith("| method |") and "x plain" in line), None)
    if head is None:
        return
    place = next(n for n, name in enumerate(head.split("|")) if name.strip().startswith("x plain"))
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        cells = [cell.strip() for cell in line.split("|")]
        if (ratio := re.match(r"[\d.]+", cells[place])) is not None:
            yield cells[1], float(ratio[0])


def published() -> str:
    """The table of published drafters, as Markdown."""
    rows = ["| model | drafter | kind | layout | config |", "|---|---|---|---|---|"]
    for row in PUBLISHED:
        config = f"`{row.read}`" if row.read else "assumed"
        rows.append(f"| `{row.target}` | `{row.repo}` | `{row.kind}` | {row.layout} | {config} |")
    return "\n".join(rows) + "\n"


TABLES = {"methods": tables, "published": published}


def page_text(text: str) -> str:
    """The page with its tables written anew."""
    return PLACE.sub(lambda place: f"{place[1]}\n{TABLES[place[2]]()}{place[3]}", text)


def write_pages() -> bool:
    """Write the pages that differ; whether any did."""
    written = False
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (made := page_text(text)) != text:
            page.write_text(made, encoding="utf-8")
            written = True
    return written


if __name__ == "__main__":
    sys.stdout.write("written\n" if write_pages() else "unchanged\n")

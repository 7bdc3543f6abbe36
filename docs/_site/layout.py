"""Hook of mkdocs: pages of wide tables and pages alone in their section use the room of empty columns beside them."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

# pages of tables: no list of headings beside them
WIDE = ("benchmarks/", "results/", "sweep.md", "methods.md", "published.md", "house.md")
# pages that are a section by themselves: no list of pages beside them
ALONE = ("methods.md", "faq.md", "troubleshooting.md")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    hidden = ["toc"] * place.startswith(WIDE) + ["navigation"] * (place in ALONE)
    if hidden:
        page.meta.setdefault("hide", hidden)
    return markdown

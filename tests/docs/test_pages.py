"""What pages say beside their code: every example is shown by a page, and the rules they list are those there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec.certify.rules import RELAXED, step_of
from mmspec.core.round.rules import resolve
from mmspec.methods import find, names
from mmspec.vlm.drafters.published import PUBLISHED
from tests.docs.examples import EXAMPLES, ROOT

PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
EXACT, RELAXED_RULES, TROUBLES = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("concepts/exact.md", "concepts/relaxed.md", "troubleshooting.md")
)
LONGEST_CODE = 121  # characters; the stylesheet wraps them where a window is narrower
VERSIONS = {"1.5", "2.5", "3.5"}  # of model names
# pages of the cookbook -> how the names of their models begin
FAMILIES = {
    "llava": ("llava-1.5", "llava-v1.6"),
    "qwen2.5-vl": ("Qwen2.5-VL", "Qwen2-VL"),
    "qwen3.5": ("Qwen3.5", "Qwen3.6"),
    "gemma": ("gemma-3", "gemma-4"),
    "internvl": ("InternVL",),
}


def test_every_example_is_included_by_a_page_and_every_inclusion_exists() -> None:
    included = {name for text in PAGES.values() for name in re.findall(r"^```python\n# (\S+\.py)\n```$", text, re.M)}
    assert {f"docs/examples/{path.name}" for path in EXAMPLES.glob("*.py")} <= included
    assert included and all((ROOT / name).is_file() for name in included)


def long_code_lines(text: str) -> list[str]:
    """The lines of code of a page that are longer than a wide window shows in one piece."""
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if len(line) > LONGEST_CODE]


def test_no_line_of_code_is_cut_at_the_edge_of_a_page() -> None:
    assert long_code_lines("```\n" + "x" * 122 + "\n```\n" + "y" * 200) == ["x" * 122]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    long = {path.name: lines for path, text in PAGES.items() if (lines := long_code_lines(text))}
    assert not long and not long_code_lines(readme), long
    css = (ROOT / "docs" / "stylesheets" / "site.css").read_text(encoding="utf-8")
    assert re.search(r"\.md-typeset pre > code \{\s*white-space: pre-wrap;", css)  # narrower windows wrap them


def test_the_exact_rules_are_those_that_there_are() -> None:
    table = EXACT.split("## Exact rules")[1].split("## Proof")[0]
    assert set(re.findall(r"^\| [^|]* \| `(\w+)` \|", table, re.M)) == set(names(kind="rule", exact=True))
    assert all(resolve(name, greedy=False).exact for name in names(kind="rule", exact=True))


def test_every_relaxed_rule_has_its_line() -> None:
    table = RELAXED_RULES.split("## The rules")[1]
    listed = re.findall(r"`(?:[\w.]+\.)?([A-Z]\w+)`", table)
    missing = {find(name, kind="rule").load().__name__ for name in RELAXED} - set(listed)
    assert not missing, missing
    assert all("|" in line and line.split("|")[3].strip() for line in table.splitlines() if line.startswith("| "))


@pytest.mark.parametrize("name", RELAXED)
def test_a_relaxed_rule_says_so(name: str) -> None:
    rule = step_of(name).rule
    assert not rule.exact and "(relaxed)" in rule.name


def anchors(text: str) -> set[str]:
    """Of a page's headings, as Markdown renderers make them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    found = (re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", prose, re.M))
    return {title.strip().replace(" ", "-") for title in found}


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), target


def test_the_readme_and_the_first_page_state_figures_of_the_benchmarks() -> None:
    measured = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
        stated = {figure for row in rows for figure in re.findall(r"\d+\.\d+x?", row)}
        assert len(stated) > 5
        missing = {figure for figure in stated if figure not in measured} - VERSIONS
        assert not missing, (page.name, missing)


def test_the_cookbook_names_the_published_drafters_of_its_families() -> None:
    known = {one.repo: (one.target, one.kind) for one in PUBLISHED}
    for name, families in FAMILIES.items():
        page = (ROOT / "docs" / "cookbook" / f"{name}.md").read_text(encoding="utf-8")
        shown = {
            repo: pair for repo, *pair in re.findall(r"^\| `([^`]*/[^`]*)` \| `([^`]*)` \| `(\w+)` \|$", page, re.M)
        }
        of_family = {repo for repo, (target, _) in known.items() if target.partition("/")[2].startswith(families)}
        assert set(shown) == of_family and all(known[repo] == tuple(pair) for repo, pair in shown.items()), name


def test_pages_of_results_state_figures_of_the_tables() -> None:
    sources = [ROOT / "BENCHMARKS.md", *(ROOT / "docs" / "benchmarks").glob("*.md")]
    measured = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    for page in (ROOT / "docs" / "results").glob("*.md"):
        stated = set(re.findall(r"\d+\.\d+", page.read_text(encoding="utf-8")))
        missing = {figure for figure in stated if figure not in measured} - VERSIONS
        assert len(stated) > 10 and not missing, (page.name, missing)


def test_the_drawn_speeds_are_those_of_the_table() -> None:
    drawn = re.findall(r">(\d\.\d\d)x<", (ROOT / "docs" / "figures" / "smollm2_speed.svg").read_text(encoding="utf-8"))
    table = PAGES[ROOT / "docs" / "results" / "text.md"].split("| prompts |")[1].split("\n\n")[0]
    rows = [re.findall(r"(\d\.\d\d)x", line) for line in table.splitlines()[2:]]
    assert len(rows) == 10 and sorted(drawn) == sorted(figure for row in rows for figure in (row[0], row[3]))

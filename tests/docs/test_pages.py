"""What pages say beside their code: every example is shown by a page, and the rules they list are those there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec.certify.rules import RELAXED, step_of
from mmspec.core.rules import resolve
from mmspec.methods import find, names
from tests.docs.examples import EXAMPLES, ROOT

PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
EXACT = (ROOT / "docs" / "concepts" / "exact.md").read_text(encoding="utf-8")


def test_every_example_is_included_by_a_page_and_every_inclusion_exists() -> None:
    included = {name for text in PAGES.values() for name in re.findall(r"^```python\n# (\S+\.py)\n```$", text, re.M)}
    assert {f"docs/examples/{path.name}" for path in EXAMPLES.glob("*.py")} <= included
    assert included and all((ROOT / name).is_file() for name in included)


def test_the_exact_rules_are_those_that_there_are() -> None:
    table = EXACT.split("## Exact rules")[1].split("## Relaxed rules")[0]
    assert set(re.findall(r"^\| [^|]* \| `(\w+)` \|", table, re.M)) == set(names(kind="rule", exact=True))
    assert all(resolve(name, greedy=False).exact for name in names(kind="rule", exact=True))


def test_every_relaxed_rule_has_its_line() -> None:
    table = EXACT.split("## Relaxed rules")[1].split("## Proof")[0]
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

"""A Markdown page stands alone: title, command, machine, versions, date, sentences, plot and tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mmspec.evaluate.base.provenance import environment
from mmspec.evaluate.report.bench_page import COLUMNS, Page, briefly_titled, linked, markdown, sections
from mmspec.evaluate.report.page import Grid, bullets, document

HEADS = ("method", "output", "x plain (10-90 %)")
PAGE = Page(
    "one | another",
    {head: COLUMNS[head] for head in HEADS},
    ("batch",),
    lambda rows: f"batch {rows[0]['batch']}",
    ("quick",),
)


def row(batch: int, **more: object) -> dict:
    return {"method": "a|b", "exact": True, "batch": batch, "speedup_vs_ar": 2.5, "spread": [2.0, 3.0], **more}


def result(*rows: dict) -> dict:
    more = {"model": "zoo vlm", "dtype": "float32", "code": "0.1.0+abc", "seed": 3, "timing": "medians"}
    return {"env": environment(bench="vlm", suite="methods", **more), "rows": list(rows)}


def test_a_page_says_how_and_where_it_was_measured() -> None:
    made = result(row(1))
    env, text = made["env"], markdown(PAGE, made)
    assert text.splitlines()[0] == "# `mmspec bench vlm --suite methods`: one | another"
    facts = dict(
        line[2:-2].split(" | ", 1) for line in text.splitlines() if line.startswith("| ") and line.count("|") == 3
    )
    assert (
        facts["command"] == f"`{env['command']}`"
        and facts["date"] == env["date"]
        and facts["code and weights"] == "0.1.0+abc"
    )
    assert facts["machine"].startswith(f"{env['processor']}, cores: {env['cores']}, threads: {env['threads']}")
    assert all(f"{name} {number}" in facts["versions"] for name, number in env["versions"].items())
    assert facts["timing"] == "medians" and facts["seed"] == "3" and "quality" not in facts
    assert "- quick" in text.splitlines()


def test_every_table_has_its_title_its_rows_and_its_failures() -> None:
    failed = row(2, exact=None, speedup_vs_ar=None, spread=None, failed="no", failed_requests=1, requests=1)
    text = markdown(PAGE, result(row(1), row(1), failed))
    first, second = text.split("## ")[1:3]
    assert first.count("| a\\|b | exact | 2.5 (2.0-3.0) |") == 2 and first.startswith("batch 1\n")
    assert "| a\\|b | failed | - |" in second and "- a|b failed in 1 of 1 requests: no" in second.splitlines()
    assert "| method | output | x plain (10-90 %) |\n| --- | --- | ---: |\n" in second


def test_a_suite_gives_its_page_a_title() -> None:
    titled = replace(PAGE, heading="Text: everything")
    lines = markdown(titled, result(row(1))).splitlines()
    assert lines[:3] == ["# Text: everything", "", "One | another."]


def test_titles_hold_the_settings_that_tell_tables_apart() -> None:
    def titled(*titles: str) -> list[tuple[str, str]]:
        return [(grid.title, grid.lead) for grid in briefly_titled([Grid(title, (), ()) for title in titles])]

    assert titled("batch 1, top-k 0, T = 1: 8 prompts", "batch 8, top-k 0, T = 1: 8 prompts") == [
        ("batch 1", "Top-k 0, T = 1; 8 prompts."),
        ("batch 8", "Top-k 0, T = 1; 8 prompts."),
    ]
    assert titled("all kinds, T = 0", "by kind, T = 0") == [("all kinds", "T = 0."), ("by kind", "T = 0.")]
    assert titled("batch 1, steps 64, T = 1: 8 prompts") == [("Results", "Batch 1, steps 64, T = 1; 8 prompts.")]
    assert titled("batch 1") == [("batch 1", "")] and briefly_titled([]) == []


def test_a_plot_is_linked_from_where_the_page_lies() -> None:
    assert linked(Path("docs/figures/a.png"), Path("docs/benchmarks/a.md")) == "../figures/a.png"
    assert linked(None, Path("a.md")) is None
    assert "![one | another](a.png)" in markdown(PAGE, result(row(1)), "a.png")


def test_rows_are_split_where_a_field_changes() -> None:
    found = sections(PAGE, [row(1), row(1), row(2)])
    assert [(grid.title, len(grid.lines)) for grid in found] == [("batch 1", 2), ("batch 2", 1)]


def test_a_page_has_no_gap_where_a_block_is_empty() -> None:
    grid = Grid("g", ("name", "a|b"), (("x", "1"),), notes=("low",))
    text = document("t", ["first"], [], bullets(()), grids=[grid])
    assert text == "# t\n\nfirst\n\n## g\n\n| name | a\\|b |\n| --- | ---: |\n| x | 1 |\n\n- low\n"
    assert grid.figures == ("a|b",)

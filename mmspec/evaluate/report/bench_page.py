"""The page of a bench: the columns that all domains share, its tables and its Markdown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from mmspec.evaluate.engine.suite import Suite
from mmspec.evaluate.report.page import (
    Cell,
    Columns,
    Grid,
    bullets,
    document,
    fact_lines,
    figure,
    grid_of,
    law,
    picture,
    ratio,
    run_facts,
    same,
    version_texts,
)

Title = Callable[[Sequence[dict]], str]


def shares(row: dict) -> str:
    parts = [row.get(f"{part}_share") for part in ("draft", "target", "verify")]
    return "-" if parts[0] is None else " + ".join(f"{part:.2f}" for part in parts)


# columns of every domain; a domain adds its own
COLUMNS: dict[str, Cell] = {
    "method": lambda row: row["method"],
    "output": law,
    "passes": figure("target_passes"),
    "accept length": figure("accept_length"),
    "seconds": figure("seconds"),
    "x plain (10-90 %)": ratio("speedup_vs_ar", "spread"),
    "draft + target + verify share": shares,
    "identical": same("identical", "ties", "margin"),
}

# columns of domains whose output is judged as pictures
IMAGE_COLUMNS: dict[str, Cell] = {
    "Frechet (90 %)": ratio("frechet", "frechet_interval"),
    "of plain's own (90 %)": ratio("frechet_ratio", "frechet_ratio_interval"),
    "CLIP score": figure("clip_score"),
    "retrieval": figure("retrieval"),
    "judge": figure("judge"),
}


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a bench as a domain describes it."""

    about: str  # the subject of the comparison
    columns: Columns  # the heads and the cells below them, starting with the method and its exactness
    by: tuple[str, ...]  # the fields that split rows into tables
    title: Title  # from a table's rows
    notes: tuple[str, ...] = ()  # on the results
    grids: tuple[Grid, ...] = ()  # compact tables after the others
    has_table: Callable[[dict], bool] = lambda row: True  # whether full tables show a row
    heading: str = ""  # the command and `about` where it is empty


def suite_page(
    suites: Mapping[str, Suite],
    result: dict,
    columns: Columns,
    by: tuple[str, ...],
    title: Title,
    notes: Iterable[str],
    **more: object,
) -> Page:
    """Return the page of a bench file with the columns of its suite; the other arguments are those of `Page`."""
    suite = suites[result["env"]["suite"]]
    shown = {head: columns[head] for head in suite.columns}
    return Page(suite.about, shown, by, title, tuple(notes), heading=suite.title, **more)


def counts(rows: Sequence[dict], unit: str = "prompts") -> list[str]:
    """Return the number of timed requests of a table, and of images per quality figure, in words."""
    first = rows[0]
    text = [f"{first['prompts']} {unit} timed"] if first.get("prompts") else []
    images = next((row["images"] for row in rows if row.get("images")), None)
    if images:
        text.append(f"{images} images a quality figure, plain's own Frechet distance {first.get('frechet_ar')}")
    return text


def best_rows(
    groups: Mapping[str, Sequence[dict]], describe: Callable[[Mapping], str], name: str = "speedup_vs_ar"
) -> list[str]:
    """Return a sentence on the row of each group with the largest figure; empty groups are skipped."""
    best = {text: max(rows, key=lambda row: row[name]) for text, rows in groups.items() if rows}
    return [f"{text}: {row['method']}; {describe(row)}, {row[name]}x" for text, row in best.items()]


def near_plain(row: dict) -> bool:
    """Return whether the images of a row are within 5 % of plain decoding's own Frechet distance."""
    return (row.get("frechet_ratio") or 2.0) <= 1.05


def sections(page: Page, rows: Sequence[dict]) -> list[Grid]:
    """Return a table per setting with sentences on its failures, in the order of the rows, then the compact tables."""
    shown = filter(page.has_table, rows)
    parts = [list(group) for _, group in groupby(shown, key=lambda row: [row[name] for name in page.by])]
    return [*(grid_of(page.title(part), page.columns, part, failure_notes(part)) for part in parts), *page.grids]


def failure_notes(rows: Sequence[dict]) -> list[str]:
    """Return a sentence per row that failed, wholly or in part."""
    return [
        f"{row['method']} failed in {row['failed_requests']} of {row['requests']} requests: {row['failed']}"
        for row in rows
        if row.get("failed")
    ]


def markdown(page: Page, result: dict, plot: str | None = None) -> str:
    """Return the page: a title, the plot's link, a table per setting, sentences on the results, and the run that
    measured them."""
    env = result["env"]
    facts = run_facts([env], {"model": f"{env['model']}, {_placed(env)}"})
    command = f"`mmspec bench {env['bench']} --suite {env['suite']}`: {page.about}"
    about = [f"{page.about[0].upper()}{page.about[1:]}."] if page.heading else []
    return document(
        page.heading or command,
        about,
        picture(page.about, plot) if plot is not None else [],
        grids=briefly_titled(sections(page, result["rows"])),
        after=[
            ["## Notes"] if page.notes else [],
            bullets(page.notes),
            ["## The run"],
            ["Written by the command below; not to be edited by hand."],
            fact_lines(facts | {name: env.get(name) for name in ("timing", "quality")}),
        ],
    )


def briefly_titled(grids: Sequence[Grid]) -> list[Grid]:
    """Return the tables, titled "setting, setting: more words", with their differing settings as titles and the rest of
    each title as its first line."""
    settings = [grid.title.partition(": ")[0].split(", ") for grid in grids]
    shared = [part for part in settings[0] if all(part in parts for parts in settings)] if settings else []
    titled = []
    for grid, parts in zip(grids, settings, strict=True):
        own = [part for part in parts if part not in shared]
        title = ", ".join(own or (["Results"] if len(parts) > 2 else parts))
        words = [", ".join(shared)] if own or len(parts) > 2 else []
        lead = "; ".join(filter(None, [*words, grid.title.partition(": ")[2]]))
        titled.append(replace(grid, title=title, lead=f"{lead[0].upper()}{lead[1:]}." if lead else ""))
    return titled


def linked(plot: Path | None, page: Path) -> str | None:
    return None if plot is None else Path(os.path.relpath(plot, page.parent)).as_posix()


def tables(page: Page, result: dict) -> Iterator[Grid | str]:
    """Yield the parts for the screen: the tables, each followed by its notes, then the notes of the bench."""
    for grid in sections(page, result["rows"]):
        yield grid
        yield from grid.notes
    yield from page.notes


def environment_line(page: Page, result: dict) -> str:
    """Return a line on suite, model, machine and versions."""
    env = result["env"]
    return (
        f"{page.about}; {env['model']}; {_placed(env)}, {env['processor']}, threads: {env['threads']}; "
        f"{', '.join(version_texts(env))}; `{env['command']}`"
    )


def _placed(env: dict) -> str:
    """Return the precision and the device of a model; older files do not name the device."""
    return ", ".join(filter(None, (env["dtype"], env.get("device"))))

"""A report: the tables and plots of a run, in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.report import pareto, profiles
from mmspec.evaluate.report.cautions import cautions, failures
from mmspec.evaluate.report.rows import Table, category_rows, rows, tables
from mmspec.evaluate.report.style import looks
from mmspec.evaluate.report.tables import as_csv, page
from mmspec.io.files import write_json_atomic, write_text_atomic


@dataclass(frozen=True, slots=True)
class Report:
    """rows: of the tables.   notes: what a reader must know.   files: all that was written, the page first."""

    rows: list[dict]
    notes: list[str]
    files: list[Path]


def write_report(found: Records, folder: Path, *, plots: bool = True) -> Report:
    """Writes report.md, rows.csv, rows.json, acceptance.csv, time.csv, categories.csv where prompts have some, and as PNG and
    SVG the plots: quality against speed of every model and of all together, acceptance by position, the split of time,
    accept length against temperature.

    plots: False writes tables alone, which needs no matplotlib. Raises ValueError for a run without samples, and where
    matplotlib is missing.
    """
    if not found.samples:
        raise ValueError(
            f"RUN: expected a run with samples, got none in {str(found.folder)!r}, let `mmspec evaluate` finish some"
        )
    made, grouped, categories = rows(found), tables(found), category_rows(found)
    notes = [*cautions(found), *failures(found)]
    folder.mkdir(parents=True, exist_ok=True)
    drawn = _plots(made, grouped, folder) if plots else {}
    shown = {title: file.name for title, files in drawn.items() for file in files if file.suffix == ".png"}
    texts = {
        "report.md": page(found, made, categories, notes, shown),
        "rows.csv": as_csv(made),
        "acceptance.csv": as_csv(profiles.position_rows(grouped)),
        "time.csv": as_csv(profiles.time_rows(grouped)),
    }
    if categories:
        texts["categories.csv"] = as_csv(categories)
    for name, text in texts.items():
        write_text_atomic(folder / name, text)
    write_json_atomic(folder / "rows.json", {"rows": made, "notes": notes})
    return Report(
        made,
        notes,
        [*(folder / name for name in texts), folder / "rows.json", *(one for files in drawn.values() for one in files)],
    )


def _plots(made: Sequence[dict], grouped: Sequence[Table], folder: Path) -> Mapping[str, list[Path]]:
    drawn: dict[str, list[Path]] = {"quality against speed": pareto.overview(made, folder / "pareto")}
    said = {table.name: profiles.without_temperature(table.said) for table in grouped}
    for model in dict.fromkeys(table.said["model"] for table in grouped):
        part = [row for row in made if row["model"] == model]
        own, look = [table for table in grouped if table.said["model"] == model], looks(part)
        stem = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-")
        drawn |= {
            f"{model}: quality against speed": pareto.draw(part, folder / f"pareto-{stem}"),
            f"{model}: acceptance by position": profiles.draw_by_position(own, look, folder / f"acceptance-{stem}"),
            f"{model}: where the time goes": profiles.draw_time(own, folder / f"time-{stem}"),
            f"{model}: accept length": profiles.draw_by_temperature(part, said, look, folder / f"temperature-{stem}"),
        }
    return drawn

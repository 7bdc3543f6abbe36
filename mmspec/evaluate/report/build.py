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
    rows: list[dict]
    notes: list[str]  # cautions and failures
    files: list[Path]  # the page first


def write_report(records: Records, folder: Path, *, plots: bool = True) -> Report:
    """Write the tables and plots of a run: report.md, rows.csv, rows.json, acceptance.csv, time.csv, and categories.csv
    if prompts have categories. The plots, as PNG and SVG, show quality against speed per model and overall, acceptance
    by position, the split of time, and accept length against temperature. Tables alone need no matplotlib."""
    if not records.samples:
        raise ValueError(
            f"RUN: expected a run with samples, got none in {str(records.folder)!r}, let `mmspec evaluate` finish some"
        )
    all_rows, grouped, categories = rows(records), tables(records), category_rows(records)
    notes = [*cautions(records), *failures(records)]
    folder.mkdir(parents=True, exist_ok=True)
    drawn = _plots(all_rows, grouped, folder) if plots else {}
    shown = {title: file.name for title, files in drawn.items() for file in files if file.suffix == ".png"}
    texts = {
        "report.md": page(records, all_rows, categories, notes, shown),
        "rows.csv": as_csv(all_rows),
        "acceptance.csv": as_csv(profiles.position_rows(grouped)),
        "time.csv": as_csv(profiles.time_rows(grouped)),
    }
    if categories:
        texts["categories.csv"] = as_csv(categories)
    for name, text in texts.items():
        write_text_atomic(folder / name, text)
    write_json_atomic(folder / "rows.json", {"rows": all_rows, "notes": notes})
    return Report(
        all_rows,
        notes,
        [
            *(folder / name for name in texts),
            folder / "rows.json",
            *(file for files in drawn.values() for file in files),
        ],
    )


def _plots(all_rows: Sequence[dict], grouped: Sequence[Table], folder: Path) -> Mapping[str, list[Path]]:
    drawn: dict[str, list[Path]] = {"quality against speed": pareto.overview(all_rows, folder / "pareto")}
    shared = {table.name: profiles.without_temperature(table.shared) for table in grouped}
    for model in dict.fromkeys(table.shared["model"] for table in grouped):
        part = [row for row in all_rows if row["model"] == model]
        own, look = [table for table in grouped if table.shared["model"] == model], looks(part)
        stem = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-")
        drawn |= {
            f"{model}: quality against speed": pareto.draw(part, folder / f"pareto-{stem}"),
            f"{model}: acceptance by position": profiles.draw_by_position(own, look, folder / f"acceptance-{stem}"),
            f"{model}: where the time goes": profiles.draw_time(own, folder / f"time-{stem}"),
            f"{model}: accept length": profiles.draw_by_temperature(part, shared, look, folder / f"temperature-{stem}"),
        }
    return drawn

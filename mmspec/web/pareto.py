"""Runs of `mmspec evaluate` in one folder, and quality against speed as SVG.

Exact methods are filled, relaxed ones hollow, plain decoding is a star, the front a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mmspec.evaluate.report.measures import MEASURES
from mmspec.evaluate.report.pareto import SPEED, drawable, front, plotted_measures
from mmspec.evaluate.report.tables import by_table, columns_of
from mmspec.web.limits import Limits, RefusedRequest

ABSENT = "run: expected one of the runs in the server's folder, got another name, pick one of the list"
LARGEST = 200_000_000  # bytes of all shards


def known_runs(folder: Path) -> list[str]:
    """Names of the runs below a folder, that of the folder itself being "."; none where there is no folder."""
    from mmspec.evaluate.engine.shards import FOLDER

    if not folder.is_dir():
        return []
    below = [path for path in sorted(folder.iterdir()) if not path.is_symlink()]
    inside = [path.name for path in below if any((path / FOLDER).glob("*.jsonl"))]
    return [*(["."] if any((folder / FOLDER).glob("*.jsonl")) else []), *inside]


def rows_of_run(folder: Path, name: Any, limits: Limits) -> tuple[list[dict], list[str]]:
    """Rows of a run, and what a reader must know of them.

    Raises Refused for what is no name of `known_runs`, and for runs too large to read here.
    """
    from mmspec.evaluate.engine.media import inside
    from mmspec.evaluate.engine.shards import FOLDER, read_run
    from mmspec.evaluate.report.cautions import cautions, failures
    from mmspec.evaluate.report.rows import rows

    if not isinstance(name, str) or name not in known_runs(folder):
        raise RefusedRequest(ABSENT)
    try:
        run = inside(folder, name)
    except ValueError:
        raise RefusedRequest(ABSENT) from None
    size = sum(file.stat().st_size for file in (run / FOLDER).glob("*.jsonl"))
    if size > LARGEST:
        raise RefusedRequest(
            f"run: expected shards of at most {LARGEST:,} bytes, got {size:,}, use `mmspec report` on it"
        )
    try:
        found = read_run(run)
        made = rows(found) if found.samples else []
        notes = [*cautions(found), *failures(found)] if found.samples else []
    except (ValueError, OSError) as error:
        raise RefusedRequest(" ".join(str(error).replace(str(run), name).split())) from None
    if not made:
        raise RefusedRequest(f"run: expected samples in {name}, got none yet, let `mmspec evaluate` finish some")
    if len(made) > limits.rows:
        raise RefusedRequest(
            f"run: expected at most {limits.rows:,} rows, got {len(made):,}, use `mmspec report` on it"
        )
    return made, notes


WIDE, TALL = 520, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 48
KEY = (
    '<span><i class="mm-dot accepted"></i>filled: exact</span><span><i class="mm-dot hollow"></i>hollow: relaxed</span>'
    "<span>star: plain decoding</span><span>line: what nothing beats in both</span>"
)
STAR = "M0-9 2.6-3 9-2.8 3.9 1.1 5.6 7.3 0 3.8-5.6 7.3-3.9 1.1-9-2.8-2.6-3z"


def plots(rows: Sequence[dict]) -> str:
    """A plot per table and measure, and a table of the same figures below each."""
    made = []
    for title, part in by_table(rows).items():
        shown = drawable(part)
        drawn = "".join(_plot(shown, name) for name in (plotted_measures(shown) if shown else ()))
        made.append(f"<h3>{escape(title)}</h3><div class='mm-plots'>{drawn}</div>{_table(part)}")
    return f'<p class="mm-legend">{KEY}</p>{"".join(made)}'


class _Axes:
    """Where a value lies in the plot."""

    def __init__(self, rows: Sequence[dict], name: str):
        self.x = _range([end for row in rows for end in _ends(row, "speedup_vs_ar", "speedup_interval")] + [1.0])
        self.y = _range([end for row in rows for end in _ends(row, name, f"{name}_interval")])

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - self.x[0]) / (self.x[1] - self.x[0]) * (WIDE - LEFT - RIGHT)
        down = TALL - BOTTOM - (y - self.y[0]) / (self.y[1] - self.y[0]) * (TALL - TOP - BOTTOM)
        return across, down


def _ends(row: Mapping, name: str, interval: str) -> list[float]:
    return [row[name], *(row.get(interval) or ())]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or max(abs(high), 1.0) * 0.05
    return low - pad, high + pad


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers between two."""
    from math import floor, log10

    step = 10 ** floor(log10((high - low) / 4))
    step *= next(times for times in (1, 2, 2.5, 5, 10) if (high - low) / (step * times) <= 7)
    first = -(-low // step)
    return [round((first + i) * step, 10) for i in range(int((high - first * step) / step) + 1)]


def _plot(rows: Sequence[dict], name: str) -> str:
    rows = [row for row in rows if row.get(name) is not None]
    axes, measure = _Axes(rows, name), MEASURES[name]
    arrow = "higher is better" if measure.better == "higher" else "lower is better"
    parts = [_frame(axes, SPEED, f"{measure.title} ({arrow})")]
    steps = front([(row["speedup_vs_ar"], row[name]) for row in rows], measure.better)
    if len(steps) > 1:
        # as in the report: from each point back to the speed of the one before, then across to its quality
        line, before = "", None
        for across, down in (axes.at(*point) for point in steps):
            line += f"M{across:.1f} {down:.1f}" if before is None else f"V{down:.1f}H{across:.1f}"
            before = down
        parts.append(f'<path class="front" d="{line}"/>')
    parts += [_point(axes, row, name) for row in sorted(rows, key=lambda one: one["plain"])]
    label = f"{measure.title} against speed, {len(rows)} methods; the table below has the figures"
    return f'<svg class="mm-plot" viewBox="0 0 {WIDE} {TALL}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _frame(axes: _Axes, across: str, up: str) -> str:
    parts = []
    for value in _ticks(*axes.x):
        x, y = axes.at(value, axes.y[0])
        parts.append(f'<path class="rule" d="M{x:.1f} {TOP}V{y:.1f}"/><text x="{x:.1f}" y="{y + 16:.1f}" '
                     f'text-anchor="middle">{value:g}</text>')  # fmt: skip
    for value in _ticks(*axes.y):
        x, y = axes.at(axes.x[0], value)
        parts.append(f'<path class="rule" d="M{x:.1f} {y:.1f}H{WIDE - RIGHT}"/><text x="{x - 6:.1f}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{value:g}</text>')  # fmt: skip
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{TALL - 8}" text-anchor="middle">{escape(across)}</text>')
    parts.append(
        f'<text transform="translate(14 {TALL / 2 - 16}) rotate(-90)" text-anchor="middle">{escape(up)}</text>'
    )
    return "".join(parts)


def _point(axes: _Axes, row: Mapping, name: str) -> str:
    x, y = axes.at(row["speedup_vs_ar"], row[name])
    arms = ""
    if row.get("speedup_interval"):
        (left, _), (right, _) = (axes.at(end, row[name]) for end in row["speedup_interval"])
        arms += f"M{left:.1f} {y:.1f}H{right:.1f}"
    if row.get(f"{name}_interval"):
        (_, low), (_, high) = (axes.at(row["speedup_vs_ar"], end) for end in row[f"{name}_interval"])
        arms += f"M{x:.1f} {low:.1f}V{high:.1f}"
    law = "plain" if row["plain"] else "exact" if row["exact"] else "relaxed"
    told = f"{row['method']} ({law}): {row['speedup_vs_ar']:.2f} times, {row[name]:.4g}"
    mark = f'<path transform="translate({x:.1f} {y:.1f})" d="{STAR}"/>' if row["plain"] else \
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>'  # fmt: skip
    drawn = f'<path class="arms" d="{arms}"/>' if arms else ""
    return f'<g class="{law}"><title>{escape(told)}</title>{drawn}{mark}</g>'


def _table(rows: Sequence[dict]) -> str:
    columns = columns_of(rows)
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in columns)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell(row)))}</td>' for cell in columns.values())}</tr>" for row in rows
    )
    table = f'<table class="mm-table"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="mm-scroll" tabindex="0">{table}</div>'

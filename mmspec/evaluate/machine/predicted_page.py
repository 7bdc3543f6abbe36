"""Predicted against measured speedups as a table, a Markdown page and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from mmspec.evaluate.machine.predicted import LIMIT
from mmspec.evaluate.report.plots import Panel

HEADS = ("case", "method", "accept length", "measured (10-90 %)", "predicted", "error", "timed passes", "error ")
_PREDICTED, _MEASURED = "predicted", "measured"


def table_rows(result: Mapping) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heads and a line a row; errors beyond `LIMIT` are marked as misses."""
    return HEADS, [_line(row) for row in result["rows"]]


def _line(row: Mapping) -> tuple[str, ...]:
    low, high = row["spread"]
    timed = ("-", "-") if row["timed"] is None else (f"{row['timed']:.2f}", _error(row["timed_error"]))
    return (
        row["case"], row["method"], f"{row['accept_length']:.2f}", f"{row['measured']:.2f} ({low:.2f}-{high:.2f})",
        f"{row['predicted']:.2f}", _error(row["predicted_error"]), *timed,
    )  # fmt: skip


def _error(error: float) -> str:
    return f"{error:+.0%}{' miss' if abs(error) > LIMIT else ''}"


def summary(result: Mapping) -> list[str]:
    sentences = []
    for name, words in ((_PREDICTED, "probe and counted operators"), ("timed", "timed passes of the target besides")):
        errors = [abs(row[f"{name}_error"]) for row in result["rows"] if row[f"{name}_error"] is not None]
        if errors:
            inside = sum(error <= LIMIT for error in errors)
            sentences.append(
                f"{words}: {inside} of {len(errors)} rows within {LIMIT:.0%}, median error {median(errors):.0%}, "
                f"largest {max(errors):.0%}"
            )
    return sentences


def markdown_page(result: Mapping) -> str:
    env, (heads, rows) = result["env"], table_rows(result)
    about = {
        "command": f"`{env['command']}`",
        "date": env["date"],
        "machine": f"{env['processor']}, cores: {env['cores']}, threads: {env['threads']}, {env['system']}",
        "versions": ", ".join(f"{name} {version}" for name, version in env["versions"].items()),
        "load": f"{env['load'][0]:.1f} to {env['load'][1]:.1f} running processes on average in the minute before a case",
    }
    lines = ["|  |  |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in about.items()), ""]
    lines += [*(f"- {sentence}" for sentence in summary(result)), ""]
    lines += [
        "| " + " | ".join(head.strip() for head in heads) + " |",
        "|" + " --- |" * 2 + " ---: |" * (len(heads) - 2),
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def predicted_panels(result: Mapping) -> list[Panel]:
    """Return predicted against measured ratios, a cloud per case; the line is a perfect prediction."""
    most = max(max(row[_MEASURED], row[_PREDICTED]) for row in result["rows"])
    clouds = {}
    for case in dict.fromkeys(row["case"] for row in result["rows"]):
        points = [(row[_MEASURED], row[_PREDICTED]) for row in result["rows"] if row["case"] == case]
        clouds[case] = tuple(zip(*points, strict=True))
    ends = (0.0, most)
    bands = {f"within {LIMIT:.0%}": (ends, (0.0, most * (1 - LIMIT)), (0.0, most * (1 + LIMIT)))}
    return [
        Panel(
            "",
            "measured, times plain decoding",
            "predicted, times plain decoding",
            {"as measured": (ends, ends)},
            clouds,
            bands=bands,
        )
    ]

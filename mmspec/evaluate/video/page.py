"""The tables and curves of `mmspec bench video`, and the sentences below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmspec.evaluate.report.bench_page import COLUMNS as SHARED
from mmspec.evaluate.report.bench_page import Page, best_rows, counts, suite_page
from mmspec.evaluate.report.page import Cell, figure, ratio
from mmspec.evaluate.report.plots import SPEEDUP, Panel, lines_of, plot_of
from mmspec.evaluate.video.suites import SUITES

BY = ("batch", "temperature")
WANTED = 0.98  # the share of the target's reward that a fast row should reach


def _shares(row: dict) -> str:
    parts = [row.get(f"{part}_share") for part in ("draft", "target", "vae", "reward")]
    return "-" if parts[0] is None else " + ".join(f"{part or 0:.2f}" for part in parts)


def _interval(name: str) -> Cell:
    """Return a figure with its interval, where it has an interval."""
    shown, alone = ratio(name, f"{name}_interval"), figure(name)
    return lambda row: shown(row) if row.get(f"{name}_interval") else alone(row)


COLUMNS: dict[str, Cell] = {
    **SHARED,
    "knob": figure("knob"),
    "blocks kept": figure("accepted_share"),
    "target blocks": figure("target_blocks"),
    "kept by block": lambda row: " ".join(f"{share:.2f}" for share in row.get("acceptance") or ()) or "-",
    "target forwards": figure("target_forwards"),
    "fewer passes": figure("fewer_passes"),
    "p50 (s)": figure("latency_p50"),
    "p95 (s)": figure("latency_p95"),
    "predicted s": figure("predicted_seconds"),
    "measured / predicted": figure("prediction_ratio"),
    "x plain's median (90 %)": lambda row: _bounds(row.get("speedup_interval")),
    "draft + target + VAE + reward share": _shares,
    "reward": figure("reward"),
    "of plain's reward (90 %)": _interval("reward_retention"),
    "truth": figure("truth"),
    "of plain's truth (90 %)": _interval("truth_retention"),
    **{name: figure(name) for name in ("colour", "direction", "shape", "seam")},
    "reward above strided (90 %)": _interval("reward_above_strided"),
    "above random (90 %)": _interval("reward_above_random"),
    "truth above strided (90 %)": _interval("truth_above_strided"),
}


def _bounds(pair: Sequence[float] | None) -> str:
    return f"{pair[0]}-{pair[1]}" if pair else "-"


def describe(row: Mapping) -> str:
    return f"batch {row['batch']}, T = {row['temperature']:g}"


def page(result: dict) -> Page:
    return suite_page(SUITES, result, COLUMNS, BY, _title, summary(result["rows"]))


def _title(rows: Sequence[dict]) -> str:
    first = rows[0]
    parts = counts(rows)
    videos = next((row["videos"] for row in rows if row.get("videos")), None)
    if videos:
        parts.append(f"{videos} videos a figure")
    if "blocks" in first:
        parts.append(
            f"{first['blocks']} blocks of {first['block_frames']} latent frames, {first['target_steps']} and "
            f"{first['draft_steps']} passes a block, parameters {first['parameter_ratio']} : 1"
        )
    else:
        parts.append(
            f"{first['values']} codes in {first['frames']} frames, mean top-1 probability {first['top1_probability']}"
        )
    return f"{describe(first)}: {', '.join(parts)}"


def summary(rows: Sequence[dict]) -> list[str]:
    """Return sentences on the fastest rows, on predictions, and on the gain of a reward over strided routing."""
    done = [row for row in rows if row.get("speedup_vs_ar") and row["key"] not in ("ar", "draft")]
    groups = {
        "fastest exact method": [row for row in done if row["exact"]],
        "fastest relaxed method": [row for row in done if not row["exact"]],
        f"fastest that keeps {WANTED:.0%} of the reward": [
            row for row in done if (row.get("reward_retention") or 0) >= WANTED
        ],
    }
    return [*best_rows(groups, describe), *_predictions(rows), *_worth(rows)]


def _predictions(rows: Sequence[dict]) -> list[str]:
    off = [row["prediction_ratio"] for row in rows if row.get("prediction_ratio")]
    return [f"measured times are {min(off):.2f} to {max(off):.2f} of what the timing model predicts"] if off else []


def _worth(rows: Sequence[dict]) -> list[str]:
    """Return the routers whose reward is above or below strided routing by more than chance."""
    routed = [row for row in rows if row.get("reward_above_strided_interval")]
    if not routed:
        return []
    above = [row["method"] for row in routed if row["reward_above_strided_interval"][0] > 0]
    below = [row["method"] for row in routed if row["reward_above_strided_interval"][1] < 0]
    return [
        f"above strided routing at equal budget, in reward: {', '.join(above) or 'none'}; below: "
        f"{', '.join(below) or 'none'}"
    ]


def panels(result: dict) -> list[Panel]:
    """Return reward and truth against speed-up: a line per family of knobs, a point per other method."""
    plot_of(SUITES, result)
    shown = (
        ("reward_retention", "reward kept (better →)"),
        ("truth_retention", "truth kept (better →)"),
    )
    return [
        Panel("videos", SPEEDUP, label, lines_of(result["rows"], _line_name, "speedup_vs_ar", field), better="higher")
        for field, label in shown
    ]


def _line_name(row: dict) -> str:
    return row["method"] if row["knob"] is None else row["family"]

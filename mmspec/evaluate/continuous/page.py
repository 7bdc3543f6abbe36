"""The tables and curves of `mmspec bench continuous`, and the sentences below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmspec.evaluate.continuous.suites import SUITES
from mmspec.evaluate.pictures import COLUMNS as SHARED
from mmspec.evaluate.report.bench_page import Page, best_rows, counts, near_plain, suite_page
from mmspec.evaluate.report.page import Cell, figure
from mmspec.evaluate.report.plots import SPEEDUP, Line, Panel, grouped, lines_of, plot_of

BY = ("batch", "guidance", "num_iter", "temperature")

COLUMNS: dict[str, Cell] = {
    **SHARED,
    **{name: figure(name) for name in ("gamma", "acceptance")},
    "head calls": figure("head_calls"),
    "target forwards": figure("target_forwards"),
    "c": figure("cost_ratio"),
    "v": figure("window_cost"),
    "predicted x": figure("predicted_speedup"),
    "in full": figure("predicted_in_full"),
    "tokens a pass": figure("step_compression"),
}
# "Continuous Speculative Decoding for Autoregressive Image Generation": pair -> speed-up at batch 256 by gamma, one A100
PUBLISHED = {
    "MAR-H with MAR-B": {4: 1.62, 8: 1.96, 16: 2.20, 32: 2.33},
    "MAR-L with MAR-B": {4: 1.15, 8: 1.32, 16: 1.42, 32: 1.49},
}


def describe(row: Mapping) -> str:
    steps = f"{row['num_iter']} steps" if row["num_iter"] else "one token a step"
    return f"batch {row['batch']}, guidance {row['guidance']:g}, {steps}, T = {row['temperature']:g}"


def page(result: dict) -> Page:
    published = published_notes() if result["env"]["suite"] == "published" else ()
    return suite_page(SUITES, result, COLUMNS, BY, _title, (*summary(result["rows"]), *published))


def _title(rows: Sequence[dict]) -> str:
    first = rows[0]
    size = f"{first['values']} tokens of {first['head_steps']} denoising steps"
    apart = f"two draws of a token {first['draw_spread']} as far apart as tokens at random"
    return f"{describe(first)}: {', '.join([*counts(rows, 'requests'), size, apart])}"


def summary(rows: Sequence[dict]) -> list[str]:
    """Return sentences on the fastest rows and on the errors of window predictions."""
    # rows that must equal plain decoding bit for bit only serve that comparison
    done = [row for row in rows if row.get("speedup_vs_ar") and row["identical"] is None]
    relaxed = [row for row in done if not row["exact"]]
    groups = {
        "fastest exact method": [row for row in done if row["exact"]],
        "fastest relaxed method": relaxed,
        "fastest relaxed method within 5 % of plain's own Frechet distance": list(filter(near_plain, relaxed)),
    }
    lines = best_rows(groups, describe)
    for key, formula in (
        ("predicted_speedup", "gamma / (gamma c + 1)"),
        ("predicted_in_full", "what follows with v, a window's pass over a plain one, and the passes without a draft"),
    ):
        off = [row["speedup_vs_ar"] / row[key] for row in done if row.get(key)]
        if off:
            lines.append(f"patched windows came to {min(off):.2f} to {max(off):.2f} of {formula}")
    return lines


def published_notes() -> list[str]:
    """Return the paper's speed-ups, for comparison with c and not with seconds."""
    lines = []
    for pair, speeds in PUBLISHED.items():
        shown = ", ".join(f"gamma {gamma} {speed}x" for gamma, speed in speeds.items())
        lines.append(
            f"published for {pair} on one A100 at batch 256: {shown}; at the c that gamma 32 implies, "
            f"{_implied(32, speeds[32]):.3f}, gamma / (gamma c + 1) gives gamma 4 "
            f"{4 / (4 * _implied(32, speeds[32]) + 1):.2f}x"
        )
    return lines


def _implied(gamma: int, speed: float) -> float:
    """Return the c for which gamma / (gamma c + 1) is this speed-up."""
    return 1 / speed - 1 / gamma


def panels(result: dict) -> list[Panel]:
    """Return Frechet distance against speed-up: a line per family of knobs, a point per other method."""
    plot_of(SUITES, result)
    settings = grouped(result["rows"], lambda row: tuple(row[name] for name in BY), "frechet", "speedup_vs_ar")
    return [
        Panel(
            f"{describe(rows[0])}, {rows[0]['images']} images",
            SPEEDUP,
            "Fréchet distance to plain images (← better)",
            _lines(rows),
            _clouds(rows),
            _front(rows),
            better="lower",
        )
        for rows in settings.values()
    ]


def _lines(rows: Sequence[dict]) -> dict[str, Line]:
    """Return a line for each family with a knob, from lowest to highest, and for plain decoding."""
    xs = [row["speedup_vs_ar"] for row in rows]
    own = rows[0]["frechet_ar"]
    alone = [row for row in rows if not _is_stacked(row)]
    swept = lines_of(alone, lambda row: row["family"] or row["method"], "speedup_vs_ar", "frechet")
    return {"plain's own split halves": ((min(xs), max(xs)), (own, own)), **swept}


def _clouds(rows: Sequence[dict]) -> dict[str, Line]:
    """Return the schedules and their combinations, with and without drafts."""
    names = {True: "CSpD with schedules", False: "schedules alone"}
    stacked = [row for row in rows if _is_stacked(row)]
    return lines_of(stacked, lambda row: names[row["gamma"] is not None], "speedup_vs_ar", "frechet")


def _is_stacked(row: dict) -> bool:
    return row["knob"] is None and bool(row["family"])


def _front(rows: Sequence[dict]) -> list[tuple[float, float, str]]:
    """Return the methods that no other beats in both speed and distance. Of methods within 1 % in speed, only the
    nearest is named; methods slower than plain decoding are left out."""
    best, front = float("inf"), []
    for row in sorted(rows, key=lambda row: (-row["speedup_vs_ar"], row["frechet"])):
        if row["frechet"] < best and row["speedup_vs_ar"] >= 1:
            best = row["frechet"]
            front.append((row["speedup_vs_ar"], best, row["method"]))
    named: list[tuple[float, float, str]] = []
    for point in reversed(front):
        if not named or point[0] > 1.01 * named[-1][0]:
            named.append(point)
    return named

"""The tables and curves of `mmspec bench vlm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmspec.evaluate.report.bench_page import COLUMNS as SHARED
from mmspec.evaluate.report.bench_page import Page, suite_page
from mmspec.evaluate.report.page import Cell, figure, large, ratio, same
from mmspec.evaluate.report.plots import ACCEPT_LENGTH, SPEEDUP, Line, Panel, grouped, lines_of, plot_of
from mmspec.evaluate.vlm.measured import curve_text
from mmspec.evaluate.vlm.suites import SUITES
from mmspec.evaluate.vlm.united import best_lines, kind_grids, parted_lines

BY = ("task", "batch", "temperature")
SHOWN = 2  # settings that plots show
POINTS = {"blocks": "tokens per pass of the drafter"}  # the points of a suite, other than lengths
AXES = {
    "pictures": "pictures in the prompt",
    "point": "drafted tokens",
    "accept_length": ACCEPT_LENGTH,
    "speedup_vs_ar": SPEEDUP,
}


def _round(row: dict) -> str:
    parts = [row[f"{part}_ms"] for part in ("draft", "target", "verify", "other")]
    return "-" if parts[0] is None else " + ".join(map(str, parts))


def _depths(row: dict) -> str:
    return " ".join(f"{share:.2f}" for share in row.get("accept_by_depth") or ()) or "-"


# every column that a suite can name
COLUMNS: dict[str, Cell] = {
    **SHARED,
    "x plain (10-90 %)": ratio("speedup_vs_ar", "spread_vs_ar"),
    "x transformers (10-90 %)": ratio("speedup_vs_hf", "spread"),
    "x total time": figure("total_speedup_vs_hf"),
    "x decoding (10-90 %)": ratio("decode_speedup_vs_hf", "decode_spread_vs_hf"),
    "peak MB": figure("peak_mb"),
    "batch as alone": same("alone", "alone_ties", "alone_margin"),
    "ms a round: draft + target + verify + other": _round,
    "verify share": figure("verify_share"),
    "accept by depth": _depths,
    "drafter passes a token": figure("drafter_passes_per_token"),
    "prefill ms": figure("drafter_prefill_ms"),
    "step ms": figure("drafter_step_ms"),
    "round ms": figure("drafter_round_ms"),
    "rows": figure("drafter_rows"),
    "parameters": large("parameters"),
    "training s": figure("training_seconds"),
    "cost of MSD's": figure("cost_vs_reference"),
    "accept length of MSD's": figure("accept_vs_reference"),
    "best fixed": figure("best_fixed"),
    "x best fixed (10-90 %)": ratio("speedup_vs_best_fixed", "spread_vs_best_fixed"),
}


def describe(row: Mapping) -> str:
    return f"{row['task']}, batch {row['batch']}, T = {row['temperature']:g}"


def page(result: dict) -> Page:
    """Return the page of a bench file; suites with rows over all tasks show single tasks in compact tables."""
    rows, together = result["rows"], SUITES[result["env"]["suite"]].united
    notes, grids = [*_same_drafts(result), *_curve(result), *summary(result)], ()
    if together:
        notes += [*best_lines(rows, together), *parted_lines(rows, together)]
        grids = kind_grids(rows, together)
    shown = {"grids": grids, "has_table": lambda row: not together or row["task"] == together}
    return suite_page(SUITES, result, COLUMNS, BY, _title, notes, **shown)


def _curve(result: dict) -> list[str]:
    return [curve_text(result["cost_curve"])] if "cost_curve" in result else []


def _title(rows: Sequence[dict]) -> str:
    first = rows[0]
    sure = f"mean top-1 probability {first['top1_probability']}"
    if first["natural_end"]:
        length = f"at most {first['limit']} new tokens, {sure}"
    else:
        length = f"{first['limit']} new tokens, {sure}, share of tokens inside the answer {first['answer_share']}"
    return f"{describe(first)}: {first['prompts']} prompts, {length}"


def _same_drafts(result: dict) -> list[str]:
    """Return a sentence per temperature on the accept lengths of each rule on identical drafts."""
    lines = []
    for drafts in result.get("same_drafts", []):
        text = drafts.get("failed") or ", ".join(f"{name} {value}" for name, value in drafts["accept_length"].items())
        where = f"T = {drafts['temperature']:g}, {drafts['prompts']} prompts"
        lines.append(f"accept length on identical sampled trees, {where}: {text}")
    return lines


def summary(result: dict) -> list[str]:
    """Return sentences on the slowest row of each length controller, the fastest row, and the reference drafter."""
    rows = [row for row in result["rows"] if row["speedup_vs_ar"]]
    reference = SUITES[result["env"]["suite"]].reference
    return [*_controllers(rows), *_best(rows, reference), *_reference(rows, reference)]


def _controllers(rows: Sequence[dict]) -> list[str]:
    """Return the smallest speed-ups of controllers over plain decoding and over the best fixed length."""
    controlled = [row for row in rows if row["controlled"]]
    lines = []
    for name, rival in (("speedup_vs_ar", "plain decoding"), ("speedup_vs_best_fixed", "the best fixed length")):
        known = [row for row in controlled if row.get(name)]
        if known:
            least = min(known, key=lambda row: row[name])
            lines.append(f"goodput against {rival}: {least[name]}x at least, over {len(known)} rows ({_where(least)})")
    return lines


def _best(rows: Sequence[dict], reference: str) -> list[str]:
    if not reference:
        return []
    first = [row for row in rows if row["task"] == rows[0]["task"]]
    best = max(first, key=lambda row: row["speedup_vs_ar"])
    return [f"fastest: {_where(best)}, {best['speedup_vs_hf']}x transformers, {best['speedup_vs_ar']}x plain decoding"]


def _reference(rows: Sequence[dict], reference: str) -> list[str]:
    """Return, per setting, the drafters whose accept length is below the reference's."""
    lines = []
    for row in rows:
        if row["key"] == reference:
            others = [r for r in rows if _setting(r) == _setting(row) and r.get("accept_vs_reference")]
            fewer = [f"{r['method']} {r['accept_length']}" for r in others if r["accept_vs_reference"] < 1]
            text = ", ".join(fewer) or "none"
            lines.append(f"{_where(row)}, accept length {row['accept_length']}; drafters below it: {text}")
    return lines


def _where(row: dict) -> str:
    return f"{row['method']}; {describe(row)}"


def _setting(row: dict) -> tuple:
    return tuple(row[name] for name in BY)


def panels(result: dict) -> list[Panel]:
    """Return the curves of a bench file: those of its first settings, or of all settings where one drafter is compared."""
    x, ys = plot_of(SUITES, result)

    def title(row: dict) -> str:
        # where pictures are the x axis, every number of pictures is a task
        task = "" if x == "pictures" else f"{row['task']}, "
        return f"{task}batch {row['batch']}, T = {row['temperature']:g}"

    rows, label = result["rows"], POINTS.get(result["env"]["suite"], AXES[x])
    settings = grouped(rows, title)
    drafters = list(dict.fromkeys(row["drafter"] for row in rows if row["drafter"] != "none"))
    if x == "point" and len(drafters) == 1 and len(settings) > 1:
        batches = {row["batch"] for row in rows}

        def name(row: dict) -> str:
            return f"{row['task']}, T = {row['temperature']:g}" if len(batches) == 1 else title(row)

        lines = {y: lines_of([row for row in rows if row["drafter"] in drafters], name, x, y) for y in ys}
        return [Panel(drafters[0], label, AXES[y], curves) for y, curves in lines.items()]
    shown = list(settings.items())[:SHOWN]
    return [Panel(name, label, AXES[y], _lines(part, x, y)) for name, part in shown for y in ys]


def _lines(rows: Sequence[dict], x: str, y: str) -> dict[str, Line]:
    """Return a line per method over pictures, or per drafter over lengths or blocks; controlled rows are level lines."""
    drafted = [row for row in rows if row["drafter"] != "none"]
    lines = lines_of(drafted, lambda row: row["method"] if x == "pictures" else row["drafter"], x, y)
    if x == "point" and lines:
        ends = min(min(xs) for xs, _ in lines.values()), max(max(xs) for xs, _ in lines.values())
        lines |= {row["method"]: (ends, (row[y], row[y])) for row in rows if row["controlled"] and row.get(y)}
    return lines

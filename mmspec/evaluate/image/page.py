"""The tables and curves of `mmspec bench image`, and the sentences below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmspec.evaluate.image.suites import SUITES
from mmspec.evaluate.pictures import COLUMNS as SHARED
from mmspec.evaluate.report.bench_page import Page, best_rows, counts, near_plain, suite_page
from mmspec.evaluate.report.page import Cell, figure
from mmspec.evaluate.report.plots import Line, Panel, grouped, lines_of, plot_of

BY = ("batch", "guidance", "top_k", "temperature")
AXES = ("codes per target pass (more →)", "Fréchet distance to plain images (← better)")
COLUMNS: dict[str, Cell] = {**SHARED, "step compression": figure("step_compression")}


def describe(row: Mapping) -> str:
    return f"batch {row['batch']}, guidance {row['guidance']:g}, top-k {row['top_k']}, T = {row['temperature']:g}"


def page(result: dict) -> Page:
    return suite_page(SUITES, result, COLUMNS, BY, _title, summary(result["rows"]))


def _drawn(row: dict) -> tuple:
    """Return the sampling settings of a row, without its batch size."""
    return tuple(row[name] for name in BY[1:])


def _title(rows: Sequence[dict]) -> str:
    first = rows[0]
    sure = f"mean top-1 probability {first['top1_probability']}"
    used = f"{first['codes_used']} of {first['codes']} codes used (perplexity {first['code_perplexity']})"
    return f"{describe(first)}: {', '.join([*counts(rows), sure, used])}"


def summary(rows: Sequence[dict]) -> list[str]:
    """Return sentences on the best rows, and on the step compression that larger batches retain."""
    done = [row for row in rows if row["temperature"] > 0 and row.get("step_compression") and row["key"] != "ar"]
    exact, close = [row for row in done if row["exact"]], [row for row in done if not row["exact"] and near_plain(row)]
    timed = [row for row in exact if row.get("speedup_vs_ar")]
    near = "most steps saved by a relaxed method within 5 % of plain's own Frechet distance"
    return [
        *best_rows({"most steps saved by an exact method": exact}, describe, "step_compression"),
        *best_rows({"fastest exact method": timed}, describe),
        *best_rows({near: close}, describe, "step_compression"),
        *_automatic(rows),
        *_batches(done),
    ]


def _automatic(rows: Sequence[dict]) -> list[str]:
    """Return the controller's smallest speed-up over plain decoding and over the fastest exact row of its setting."""
    timed = [row for row in rows if row.get("speedup_vs_ar") and row["exact"]]
    own = [row for row in timed if row["key"] == "auto"]
    if not own:
        return []
    lines = []
    for rival, base in (("plain decoding", 1.0), ("the fastest exact row", None)):
        ratios = [(row["speedup_vs_ar"] / (base or _fastest(timed, row)), row) for row in own]
        least, row = min(ratios, key=lambda pair: pair[0])
        lines.append(f"auto against {rival}: {least:.3f}x at least, over {len(own)} rows ({_where(row)})")
    return lines


def _fastest(rows: Sequence[dict], row: dict) -> float:
    """Return the best speed-up among the other rows of a row's setting; plain decoding's is 1."""
    setting = [peer for peer in rows if [peer[name] for name in BY] == [row[name] for name in BY]]
    return max((peer["speedup_vs_ar"] for peer in setting if peer["key"] != row["key"]), default=1.0)


def _batches(rows: Sequence[dict]) -> list[str]:
    """Return, per larger batch size, the method with the greatest loss of step compression against batch 1."""
    alone = {(row["key"], *_drawn(row)): row for row in rows if row["batch"] == 1 and row.get("prompts")}
    ratios: dict[int, list[tuple[float, dict]]] = {}
    for row in rows:
        other = alone.get((row["key"], *_drawn(row)))
        if other is not None and row["batch"] > 1:
            ratios.setdefault(row["batch"], []).append((row["step_compression"] / other["step_compression"], row))
    lines = []
    for batch, pairs in ratios.items():
        share, row = min(pairs, key=lambda pair: pair[0])
        lines.append(f"step compression of batch {batch} against batch 1: {share:.3f} at least ({_where(row)})")
    return lines


def _where(row: dict) -> str:
    return f"{row['method']}; {describe(row)}"


def panels(result: dict) -> list[Panel]:
    """Return Frechet distance against step compression, with plain decoding at 1. Each family of knobs is a line, each
    exact method a point; a level line is plain decoding's own split-half distance."""
    plot_of(SUITES, result)
    title = "guidance {:g}, top-k {}, T = {:g}, {} images"
    settings = grouped(result["rows"], _drawn, "frechet")
    return [
        Panel(title.format(*drawn, part[0]["images"]), *AXES, _lines(part), better="lower")
        for drawn, part in settings.items()
    ]


def _lines(rows: Sequence[dict]) -> dict[str, Line]:
    lines = lines_of(rows, lambda row: row["family"] or row["method"], "step_compression", "frechet")
    reach = max(x for xs, _ in lines.values() for x in xs)
    own = rows[0]["frechet_ar"]
    swept = {name: line for name, line in lines.items() if len(line[0]) > 1}
    return {"plain's own split halves": ((1.0, max(reach, 1.0)), (own, own)), **swept, **lines}

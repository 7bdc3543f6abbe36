"""What the tables and the plot of `mmspec bench image` show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmspec.evaluate.image.suites import SUITES
from mmspec.evaluate.report.bench_page import COLUMNS as SHARED
from mmspec.evaluate.report.bench_page import IMAGE_COLUMNS, Cell, Page, figure, selected_columns
from mmspec.evaluate.report.plots import Line, Panel, no_curve

BY = ("batch", "guidance", "top_k", "temperature")
AXES = ("values a target pass", "Frechet distance from plain decoding's images")


COLUMNS: dict[str, Cell] = {
    **SHARED,
    **IMAGE_COLUMNS,
    "knob": figure("knob"),
    "step compression": figure("step_compression"),
}


def describe(row: Mapping) -> str:
    """The setting of a row in words."""
    return f"batch {row['batch']}, guidance {row['guidance']:g}, top-k {row['top_k']}, T = {row['temperature']:g}"


def page(result: dict) -> Page:
    """The page of a bench file."""
    suite = SUITES[result["env"]["suite"]]
    columns = selected_columns(COLUMNS, suite.columns)
    return Page(
        suite.about, columns, BY, lambda rows: f"{describe(rows[0])}: {_measured(rows)}", tuple(summary(result["rows"]))
    )


def _drawn(row: dict) -> tuple:
    """How the values of a row were drawn, whatever its batch size."""
    return tuple(row[name] for name in BY[1:])


def _measured(rows: Sequence[dict]) -> str:
    """On how many prompts and images, how sure the target is, and how many codes it uses."""
    first = rows[0]
    text = []
    if first.get("prompts"):
        text.append(f"{first['prompts']} prompts timed")
    images = next((row["images"] for row in rows if row.get("images")), None)
    if images:
        text.append(f"{images} images a quality figure, plain's own Frechet distance {first.get('frechet_ar')}")
    text.append(f"mean top-1 probability {first['top1_probability']}")
    text.append(f"{first['codes_used']} of {first['codes']} codes used (perplexity {first['code_perplexity']})")
    return ", ".join(text)


def summary(rows: Sequence[dict]) -> list[str]:
    """Sentences on the best rows, and on what a batch leaves of a method's step compression."""
    done = [row for row in rows if row["temperature"] > 0 and row.get("step_compression") and row["key"] != "ar"]
    exact, relaxed = [r for r in done if r["exact"]], [r for r in done if not r["exact"]]
    close = [r for r in relaxed if (r.get("frechet_ratio") or 2.0) <= 1.05]
    made = []
    for name, what, found in (
        ("step_compression", "most steps saved by an exact method", exact),
        ("speedup_vs_ar", "fastest exact method", [r for r in exact if r.get("speedup_vs_ar")]),
        ("step_compression", "most steps saved by a relaxed method within 5 % of plain's own Frechet distance", close),
    ):
        if found:
            best = max(found, key=lambda row: row[name])
            made.append(f"{what}: {_where(best)}, {best[name]}x")
    return [*made, *_automatic(rows), *_batches(done)]


def _automatic(rows: Sequence[dict]) -> list[str]:
    """How far below plain decoding, and below the best exact row of its setting, the controller ever fell."""
    timed = [row for row in rows if row.get("speedup_vs_ar") and row["exact"]]
    own = [row for row in timed if row["key"] == "auto"]
    if not own:
        return []
    made = []
    for what, base in (("plain decoding", 1.0), ("the fastest exact row", None)):
        ratios = [(row["speedup_vs_ar"] / (base or _fastest(timed, row)), row) for row in own]
        least, row = min(ratios, key=lambda pair: pair[0])
        made.append(f"auto against {what}: {least:.3f}x at least, over {len(own)} rows ({_where(row)})")
    return made


def _fastest(rows: Sequence[dict], row: dict) -> float:
    """The best ratio of the setting a row belongs to, its own left out; plain decoding's is 1."""
    setting = [one for one in rows if [one[name] for name in BY] == [row[name] for name in BY]]
    return max((one["speedup_vs_ar"] for one in setting if one["key"] != row["key"]), default=1.0)


def _batches(rows: Sequence[dict]) -> list[str]:
    """Per larger batch size, the method that loses most of its steps against batch 1."""
    alone = {(row["key"], *_drawn(row)): row for row in rows if row["batch"] == 1 and row.get("prompts")}
    ratios: dict[int, list[tuple[float, dict]]] = {}
    for row in rows:
        other = alone.get((row["key"], *_drawn(row)))
        if other is not None and row["batch"] > 1:
            ratios.setdefault(row["batch"], []).append((row["step_compression"] / other["step_compression"], row))
    made = []
    for batch, found in ratios.items():
        share, row = min(found, key=lambda pair: pair[0])
        made.append(f"step compression of batch {batch} against batch 1: {share:.3f} at least ({_where(row)})")
    return made


def _where(row: dict) -> str:
    return f"{row['method']}; {describe(row)}"


def panels(result: dict) -> list[Panel]:
    """Frechet distance against step compression: a line per family of knobs, a point per exact method, plain decoding at 1.

    A level line is plain decoding's own split-half distance.   Raises ValueError for a suite without a plot.
    """
    name = result["env"]["suite"]
    if not SUITES[name].plot:
        raise no_curve(name)
    settings: dict[tuple, list[dict]] = {}
    for row in result["rows"]:
        if row.get("frechet") is not None:
            settings.setdefault(_drawn(row), []).append(row)
    return [
        Panel(f"guidance {guidance:g}, top-k {top_k}, T = {temperature:g}, {rows[0]['images']} images",
              *AXES, _lines(rows))
        for (guidance, top_k, temperature), rows in settings.items()
    ]  # fmt: skip


def _lines(rows: Sequence[dict]) -> dict[str, Line]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points.setdefault(row["family"] or row["method"], []).append((row["step_compression"], row["frechet"]))
    lines = {name: tuple(zip(*sorted(pairs), strict=True)) for name, pairs in points.items()}
    reach = max(x for xs, _ in lines.values() for x in xs)
    own = rows[0]["frechet_ar"]
    swept = {name: line for name, line in lines.items() if len(line[0]) > 1}
    return {"plain's own split halves": ((1.0, max(reach, 1.0)), (own, own)), **swept, **lines}

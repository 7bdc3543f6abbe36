"""Draw the figures of the pages, or those named, from the tables of the pages: `python docs/_site/figures.py estimate
lengths`.

Every number is read from a table or from docs/figures/acceptance.csv, which `mmspec evaluate RUN --model t2i --model
vlm --count 12` and `mmspec report RUN --no-plots` write; nothing is measured here. The drawings are those of `mmspec
bench --plot`, `mmspec report` and `mmspec estimate --validate --plot`.

A figure carries the digest of the numbers that it plots, the digest of its pixels, and the version of matplotlib. So a
test finds a figure that is older than its table, or that was changed by hand, with any version of matplotlib."""

from __future__ import annotations

import csv
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.evaluate.engine.registry import domain_of
from mmspec.evaluate.machine.predicted_page import predicted_panels
from mmspec.evaluate.report import pareto, profiles
from mmspec.evaluate.report.palette import is_plain, looks_of
from mmspec.evaluate.report.plots import ACCEPT_LENGTH, Panel, draw, lines_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDER = DOCS / "figures"
NUMBER = r"-?\d[\d.]*(?:e[-+]?\d+)?"
RELAXED = r"LANTERN|GSD|typical|ZipAR|Cool-SD"  # methods of acceptance.csv that are drawn hollow


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page."""

    title: str  # the heading above it
    text: str  # between the heading and the table
    rows: list[dict[str, str]]  # the cells of each line by head


def tables(page: Path) -> Iterator[Table]:
    title, text, lines = "", [], []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if len(lines) > 2:
            heads, _, *cells = lines
            yield Table(title, " ".join(text), [dict(zip(heads, cell, strict=True)) for cell in cells])
        lines = []
        if line.startswith("#"):
            title, text = line.lstrip("# "), []
        else:
            text.append(line)


def number(cell: str | None) -> float | None:
    """Return the first number of a cell; None where it has none."""
    found = re.match(NUMBER, cell or "")
    return float(found[0]) if found else None


def interval(cell: str | None) -> list[float] | None:
    """Return the two numbers in brackets of a cell; None where it has none."""
    found = re.search(rf"\(({NUMBER})(?: to |-)({NUMBER})\)", cell or "")
    return [float(found[1]), float(found[2])] if found else None


def number_in(pattern: str, table: Table) -> float:
    """Return the number that follows a text above a table."""
    return float(re.search(rf"{pattern} (\d[\d.]*\d|\d)", f"{table.title} {table.text}")[1])


def number_before(words: str, table: Table) -> int:
    """Return the number that stands before some words above a table."""
    return int(re.search(rf"(\d+) {words}", f"{table.title} {table.text}")[1])


# the fields of rows by the head of their column
FIELDS = {
    "accept length": "accept_length", "tokens per pass": "accept_length", "x plain": "speedup_vs_ar",
    "x plain, end to end": "speedup_vs_ar", "step compression": "step_compression", "Frechet": "frechet",
    "Fréchet distance": "frechet", "CLIP score": "clip_score", "truth of motion": "truth",
    "objects named right": "objects_right", "objects drawn right": "objects_right",
    "of plain's reward": "reward_retention", "of plain's truth": "truth_retention",
}  # fmt: skip


def rows_of(table: Table) -> list[dict]:
    made = []
    for line in table.rows:
        method = line["method"]
        exact = {"exact": True, "relaxed": False}.get(line.get("output", line.get("law", "exact")))
        knob = number(line.get("knob"))
        row = {"method": method, "exact": exact, "plain": is_plain(method), "knob": knob, "key": method, "family": None}
        if knob is not None:
            row["family"] = re.sub(rf"(, (?!published|derived)\w+)? {knob:g}(?![\d.])", "", method).partition(" on ")[0]
        for head, cell in line.items():
            name = FIELDS.get(head.partition(" (")[0])
            if name:
                row |= {name: number(cell), f"{name}_interval": interval(cell)}
        row["speedup_interval"] = row.get("speedup_vs_ar_interval")
        made.append(row)
    return made


def of_page(name: str) -> list[Table]:
    """Return the tables of results of a page of docs/benchmarks."""
    return [table for table in tables(DOCS / "benchmarks" / f"{name}.md") if "method" in table.rows[0]]


def plain_data(content: Any) -> Any:
    """Return the content of a figure as data of JSON; floats have the nine digits on which all platforms agree."""
    if is_dataclass(content):
        return plain_data(asdict(content))
    if isinstance(content, Mapping):
        return {str(key): plain_data(value) for key, value in content.items()}
    if isinstance(content, str | bool | None):
        return content
    if hasattr(content, "__iter__"):
        return [plain_data(value) for value in content]
    return f"{float(content):.9g}"


def digest(content: Any) -> str:
    """Return the digest of the numbers and names that a figure plots."""
    return sha256(json.dumps(plain_data(content), sort_keys=True).encode()).hexdigest()


def pixels(file: Path) -> str:
    with Image.open(file) as picture:
        return sha256(repr(picture.size).encode() + picture.convert("RGBA").tobytes()).hexdigest()


def stamp(file: Path, content: Any) -> None:
    """Write the digests and the version of matplotlib into a PNG, as chunks of text behind its header."""
    chunks = b""
    for key, text in (("Numbers", digest(content)), ("Pixels", pixels(file)), ("Software", version("matplotlib"))):
        data = b"tEXt" + f"{key}\0{text}".encode()
        chunks += struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    drawn, header = file.read_bytes(), 8 + 25  # the signature, and the chunk of the size
    file.write_bytes(drawn[:header] + chunks + drawn[header:])


def plot(drawing: Callable, content: Any, name: str, *settings: Any) -> None:
    if drawing is draw:
        draw(content, FOLDER / f"{name}.png")
    else:
        drawing(content, *settings, FOLDER / name, ("png",))
    stamp(FOLDER / f"{name}.png", content)


def bench(domain: str, suite: str, rows: Sequence[dict], name: str) -> None:
    plot(draw, domain_of(domain).panels({"env": {"suite": suite}, "rows": list(rows)}), name)


def image_pareto() -> None:
    table = of_page("image-pareto")[0]
    shared = {name: number_in(text, table) for name, text in (("guidance", "guidance"), ("temperature", "T ="))}
    shared |= {"top_k": int(number_in("top-k", table)), "frechet_ar": number_in("Frechet distance", table)}
    shared["images"] = number_before("images", table)
    rows = [row | shared for row in rows_of(table)]
    bench("image", "pareto", rows, "image_pareto")


def continuous_pareto() -> None:
    (table,) = of_page("continuous-pareto")
    shared = {
        "batch": int(number_in("[Bb]atch", table)),
        "guidance": number_in("guidance", table),
        "temperature": number_in("T =", table),
        "num_iter": number_before("steps", table),
        "frechet_ar": number_in("Frechet distance", table),
        "images": number_before("images", table),
    }
    rows = [row | shared | {"gamma": 1 if row["method"].startswith("CSpD") else None} for row in rows_of(table)]
    for row in rows:
        if row["knob"] is None and not row["plain"]:
            row["family"] = "stack"
    bench("continuous", "pareto", rows, "continuous_pareto")


def video_threshold() -> None:
    (table,) = of_page("video-threshold")
    bench("video", "threshold", rows_of(table), "video_threshold")


def text_rows(page: str) -> Iterator[dict]:
    """Yield the rows of a bench of texts with their settings, and with the drafter and the length in their names."""
    for table in of_page(page):
        shared = {
            "task": table.title.partition(",")[0],
            "batch": int(number_in("[Bb]atch", table)),
            "temperature": number_in("T =", table),
        }
        for row in rows_of(table):
            drafter, _, setting = row["method"].partition(", ")
            length = re.search(r"\d+", setting)
            is_plainly = row["plain"] or "whole layer" in setting
            yield (
                row
                | shared
                | {
                    "drafter": "none" if is_plainly else drafter,
                    "point": int(length[0]) if length else None,
                    "controlled": setting == "goodput",
                    "pictures": number(table.title),
                }
            )


def lengths() -> None:
    bench("vlm", "lengths", list(text_rows("vlm-lengths")), "lengths")


def blocks() -> None:
    bench("vlm", "blocks", list(text_rows("vlm-blocks")), "blocks")


def pictures() -> None:
    bench("vlm", "pictures", list(text_rows("vlm-pictures")), "pictures")


def estimate() -> None:
    table = next(table for table in tables(DOCS / "estimate.md") if "measured (10-90 %)" in table.rows[0])
    rows = [
        {"case": line["case"], "measured": number(line["measured (10-90 %)"]), "predicted": number(line["predicted"])}
        for line in table.rows
    ]
    plot(draw, predicted_panels({"rows": rows}), "estimate")


def training() -> None:
    table = next(table for table in tables(ROOT / "BENCHMARKS.md") if {"drafter", "100", "800"} <= set(table.rows[0]))
    lines = {}
    for row in table.rows:
        points = [(int(step), float(cell)) for step, cell in row.items() if step.isdigit() and cell != "-"]
        if len(points) > 2:
            lines[row["drafter"].partition(" (")[0]] = tuple(zip(*points, strict=True))
    plot(draw, [Panel("held-out captions, while training", "training steps", ACCEPT_LENGTH, lines)], "training")


def smollm2_training() -> None:
    text = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
    found = re.search(r"\*\*Training curve\*\*.*?(step 100 .*?) \(", text, re.DOTALL)[1]
    points = [(int(step), float(value)) for step, value in re.findall(r"(\d+) (\d\.\d+)", found)]
    lines = {"EAGLE-3 for SmolLM2": tuple(zip(*points, strict=True))}
    panel = Panel("held-out prompts, while training", "training steps", ACCEPT_LENGTH, lines)
    plot(draw, [panel], "smollm2_training")


def sweep_rows() -> list[dict]:
    found = [table for table in tables(DOCS / "sweep.md") if "method" in table.rows[0]]
    return [
        row | {"table": table.title, "model": table.title.partition(",")[0]}
        for table in found
        for row in rows_of(table)
    ]


def sweep() -> None:
    """Draw quality against speed of each model of the sweep, and of all together."""
    rows = sweep_rows()
    plot(pareto.overview, rows, "sweep_overview")
    for model, name in {"car": "car", "mar": "mar", "t2i": "images", "video": "video", "vlm": "captions"}.items():
        plot(pareto.draw, [row for row in rows if row["model"] == model], f"sweep_{name}")


def temperature() -> None:
    rows = [row | {"temperature": float(re.search(r"T = ([\d.]+)", row["table"])[1])} for row in sweep_rows()]
    lines = lines_of(
        [row for row in rows if row["model"] == "vlm" and not row["plain"]],
        lambda row: row["method"],
        "temperature",
        "accept_length",
    )
    plot(draw, [Panel("captions", "temperature", ACCEPT_LENGTH, lines)], "sweep_temperature")


def acceptance() -> None:
    found: dict[str, dict[str, list[float]]] = {}
    with (FOLDER / "acceptance.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["table"], {}).setdefault(row["method"], []).append(float(row["share"]))
    names = dict.fromkeys(name for methods in found.values() for name in methods)
    look = looks_of((name, not re.search(RELAXED, name)) for name in names)
    plot(profiles.draw_positions, found, "sweep_acceptance", look)


def time() -> None:
    head, found = "ms a round: draft + target + verify + other", {}
    for table in of_page("vlm-methods"):
        rows = [
            row
            for row in table.rows
            if row.get(head, "-") != "-" and "batch 1" in f"{table.title} {table.text}".lower()
        ]
        parts = {row["method"]: _milliseconds(row, row[head]) for row in rows}
        whole = sum(parts.get("mmspec plain", {}).values())
        if whole:
            title = f"captions, T = {number_in('T =', table):g}"
            found[title] = {
                name: {part: seconds / whole for part, seconds in bar.items()} for name, bar in parts.items()
            }
    plot(profiles.draw_shares, found, "time")


def _milliseconds(row: dict[str, str], cell: str) -> dict[str, float]:
    draft, target, verify, other = (float(part) / number(row["accept length"]) for part in cell.split(" + "))
    return {"target": target, "draft": draft, "verify": verify, "other": other}


FIGURES: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        image_pareto,
        continuous_pareto,
        video_threshold,
        lengths,
        blocks,
        pictures,
        estimate,
        training,
        smollm2_training,
        sweep,
        temperature,
        acceptance,
        time,
    )
}


def main(names: Sequence[str]) -> None:
    for name in names or FIGURES:
        FIGURES[name]()
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])

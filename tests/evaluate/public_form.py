"""Every suite of every domain on tiny models: the public form of its bench file, and its figures without times.

`python -m tests.evaluate.public_form FILE [DOMAIN...]` writes the figures of the suites: two engines measure alike where they
write equal files on one machine. `public_form.json` holds the form, which is the same on any machine.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmspec.evaluate.engine.bench import bench
from mmspec.evaluate.engine.registry import DOMAINS, config_of, domain_of
from tests.evaluate.tiny_continuous import use_tiny_continuous
from tests.evaluate.tiny_hybrid import use_tiny_hybrid
from tests.evaluate.tiny_images import use_tiny_images
from tests.evaluate.tiny_video import use_tiny_video
from tests.evaluate.tiny_zoo import use_tiny_zoo
from tests.evaluate.vlm.tiny_text import save_text_model

FORM = Path(__file__).with_name("public_form.json")
_TEXT = {"prompts": 2, "new_tokens": 4, "batches": (1,), "temperatures": (0.0,)}
_IMAGE = {"guidance": (3.0,), "top_k": (6,), "images": 8}
_VECTORS = {"guidance": (2.0,), "num_iter": (4,)}
# one method of every kind of row
_IMAGES = ("auto", "sjd-16", "scd-gumbel-32-kseq", "eagle-tree", "sjd-gsd", "zipar-8", "mulo-learned")
_MASKED = ("cspd-patch-derived-4", "tolerance-0", "head-1", "anneal", "cspd+head+anneal")
_ROUTED = ("draft", "sdvg-all", "sdvg-0.5", "strided", "learned-0.75", "sdvg-eager-0.75")
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "vlm": {
        "real": {"prompts": 1, "new_tokens": 4, "batches": (1,), "task_names": ("rewriting", "second_turn")},
        "methods": {
            "prompts": 2,
            "new_tokens": 4,
            "batches": (1, 2),
            "methods": ("hf-lookup", "eagle", "eagle-traversal", "eagle-recursive", "eagle-match", "lookup", "auto"),
        },
        "drafters": {**_TEXT, "methods": ("eagle_text", "msd", "vispec", "eagle-tree", "random-goodput")},
        "pictures": {**_TEXT, "prompts": 1, "methods": ("msd", "msd-whole")},
        "blocks": {**_TEXT, "prompts": 1, "methods": ("flash-1", "flash-3")},
        "hybrid": {**_TEXT, "prompts": 1, "methods": ("dflash", "mtp-tree", "lookup")},
        "lengths": {**_TEXT, "prompts": 1, "methods": ("eagle-2", "eagle-goodput", "weak-3")},
        "strict": {**_TEXT, "batches": (1, 2)},
        "captured": {**_TEXT, "prompts": 1},
        "categories": {**_TEXT, "prompts": 1, "methods": ("eagle", "lookup")},
        "families": {**_TEXT, "prompts": 1, "methods": ("eagle-ddd", "eagle-rasd", "stand-shared", "swift")},
    },
    "image": {
        "all": {**_IMAGE, "prompts": 1, "batches": (1,), "methods": _IMAGES[:5]},
        "speed": {"guidance": (3.0,), "top_k": (0,), "prompts": 2, "batches": (1, 2), "methods": _IMAGES},
        "quality": {**_IMAGE, "methods": ("sjd-16", "sjd-gsd")},
        "pareto": {"images": 8, "methods": ("sjd-16", "zipar")},
        "families": {"guidance": (3.0,), "prompts": 2, "methods": ("eagle-ddd", "eagle-dyspec", "eagle-deep-lantern")},
    },
    "continuous": {
        "speed": {**_VECTORS, "prompts": 2, "batches": (2,), "methods": _MASKED},
        "quality": {**_VECTORS, "images": 8, "methods": _MASKED[:2]},
        "pareto": {**_VECTORS, "prompts": 1, "images": 8, "methods": ("head", "cspd-patch-derived-4")},
        "published": {"prompts": 1, "batches": (1,), "methods": ("cspd-patch-bare", "tolerance")},
    },
    "video": {
        "speed": {"prompts": 1, "calibration": 10, "thresholds": (0.57,), "repeats": 2, "methods": _ROUTED},
        "routers": {
            "judged_prompts": 2,
            "draws": 1,
            "calibration": 10,
            "methods": ("draft", "sdvg-0.5", "strided-0.5"),
        },
        "threshold": {
            "prompts": 1,
            "judged_prompts": 2,
            "draws": 1,
            "calibration": 10,
            "repeats": 1,
            "methods": _ROUTED[:4],
        },
        "tokens": {"prompts": 1, "repeats": 1, "methods": ("sjd-16", "scd")},
    },
}
USED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "vlm": use_tiny_zoo,
    "image": use_tiny_images,
    "continuous": use_tiny_continuous,
    "video": use_tiny_video,
}
TIMED = re.compile(
    r"seconds|speedup|spread|share$|_ms$|latency|predict|cost|best_fixed|peak_mb|window_|in_full|rows$|^ms$|^ratio$"
)
MACHINE = ("versions", "processor", "cores", "threads", "system", "command", "date", "code", "model")


def measured(domain: str, suite: str) -> dict:
    """The bench file of a suite on tiny models."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        asked = dict(SETTINGS[domain][suite])
        (use_tiny_hybrid if suite == "hybrid" else USED[domain])(patch)
        if suite == "real":
            asked["model"] = str(save_text_model(Path(folder)))
        config = config_of(domain)(suite=suite, threads=1, **asked)
        return json.loads(json.dumps(bench(domain_of(domain), config)))


def without_times(result: dict) -> dict:
    """What a bench file says that does not depend on the machine; of rows whose lengths follow the clock, the fields."""
    env = {name: value for name, value in result["env"].items() if name not in MACHINE}
    more = {name: None if name == "cost_curve" else value for name, value in result.items() if name != "rows"}
    return {**more, "env": env, "rows": [_row(row) for row in result["rows"]]}


def _row(row: dict) -> dict:
    by_clock = "auto" in row["key"] or "goodput" in row["key"]
    kept = ("method", "key", "exact", "batch", "temperature", "identical", "failed")
    made: dict[str, Any] = {}
    for name, value in row.items():
        if name == "runs":
            value = {one: None if TIMED.search(one) else column for one, column in value.items()}
        made[name] = None if TIMED.search(name) or by_clock and name not in kept else value
    return made


def form(figures: dict) -> dict:
    """The names of all fields, and what tells the rows from one another.   figures: of `without_times`."""
    fields: list[list[str]] = []
    for row in figures["rows"]:
        if list(row) not in fields:
            fields.append(list(row))
    apart = ("task", "batch", "guidance", "top_k", "num_iter", "temperature")
    rows = [
        [row["key"], *(row[name] for name in apart if name in row), fields.index(list(row))] for row in figures["rows"]
    ]
    return {
        "file": [figure for figure in figures if figure != "rows"],
        "env": list(figures["env"]),
        "fields": fields,
        "rows": rows,
    }


def every() -> list[tuple[str, str]]:
    return [(domain, suite) for domain in DOMAINS for suite in SETTINGS[domain]]


def main(file: str, *domains: str) -> None:
    path, made = Path(file), {}
    for domain, suite in every():
        if domain in domains or not domains:
            made[f"{domain} {suite}"] = without_times(measured(domain, suite))
            print(domain, suite, file=sys.stderr, flush=True)
            path.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

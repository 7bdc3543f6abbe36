"""A tiny class model in a folder, prompts with labels and real pictures: what sweeps of any process can open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmspec.evaluate.engine.plan import SweepPlan
from mmspec.evaluate.engine.records import TIMES
from mmspec.evaluate.engine.shards import Records
from mmspec.evaluate.engine.work import SweepWork, run_work
from tests.evaluate.tiny_images import classed

DECODINGS = ("sjd:window=4", "scd:window=4")


def noise(seed: int, side: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), "uint8"))


def files(folder: Path, count: int = 6) -> Path:
    """`model`, `prompts.jsonl` and `real` in a folder."""
    classed().save_pretrained(folder / "model")
    (folder / "real").mkdir()
    for number in range(count):
        noise(number).save(folder / "real" / f"{number}.png")
    lines = [{"id": f"p{n}", "label": 7 * n, "category": "ab"[n % 2], "real": f"real/{n}.png"} for n in range(count)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def plan(made: Path, run: Path, **changed: object) -> SweepPlan:
    """A grid of three decodings and one relaxed rule over the prompts of `files`."""
    whole = SweepPlan(
        folder=run,
        models=(f"image={made / 'model'}",),
        decodings=DECODINGS,
        prompts=f"jsonl={made / 'prompts.jsonl'}",
        count=4,
        threads=1,
    )
    return replace(whole, **changed)


def lasting(found: Records) -> dict[str, dict[str, dict]]:
    """All of a run that is the same whoever made it, whatever the order of its lines."""
    return {
        "samples": {
            key: {name: sample[name] for name in sorted(sample) if name not in TIMES}
            for key, sample in found.samples.items()
        },
        "scores": {f"{key} {by}": score for (key, by), score in sorted(found.scores.items())},
        "real": {" ".join(key): one for key, one in sorted(found.real.items())},
    }


def hashes(found: Records) -> dict[str, str]:
    return {key: sample["token_hash"] for key, sample in sorted(found.samples.items())}


def run_sweep(whole: SweepPlan, **how: Any) -> Records:
    """`run_work` of a plan that has not been read yet."""
    return run_work(SweepWork.of(whole), **how)

"""Runs written by hand, whose every figure is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mmspec.evaluate.base.media import store_output
from mmspec.evaluate.engine.records import encode_row
from mmspec.evaluate.engine.shards import Records, Shard, read_run

ABOUT = {"code": "0.1.0+test", "seed": 0}
MACHINE = {
    "versions": {"mmspec": "0.1.0", "torch": "2"},
    "processor": "P",
    "cores": 2,
    "threads": 1,
    "system": "Linux",
    "command": "mmspec evaluate run",
    "date": "2026-01-01",
}


def header(model: str = "t2i", *, dim: int = 2, workers: int = 1, part: Sequence[int] = (1, 1), **more: object) -> dict:
    judge = {"extractor": "zoo CLIP", "extractor_hash": "e", "dim": dim, "scorers": {}, "hash": "j"}
    sets = {model: {"set": "zoo", "count": 4, "hash": "h"}}
    return {**MACHINE, "workers": workers, "part": list(part), "prompts": sets, "judges": {model: judge}, **more}


def sample(
    decoding: str,
    prompt: int,
    seconds: float = 2.0,
    *,
    rule: str = "exact",
    exact: bool = True,
    prefill: float = 1.0,
    model: str = "t2i",
    domain: str = "image",
    temperature: float = 1.0,
    tokens: int = 10,
    passes: int = 10,
    accepted: Sequence[int] = (0, 2, 1),
    number: int = 0,
    token_hash: str = "same",
    shows: str = "picture",
    parts: Mapping[str, float] | None = None,
    **more: object,
) -> dict:
    """A sample; `prefill` of its seconds were the prefill's, the rest the target's."""
    cell = f"{model}-{decoding}-{rule}-{temperature}".replace(":", "-")
    of = {"domain": domain, "model": model, "decoding": decoding, "rule": rule, "temperature": temperature, "batch": 1}
    rest = {"target": seconds - prefill, "draft": 0.0, "verify": 0.0, "other": 0.0}
    return {
        "kind": "sample", "key": f"{cell}/p{prompt}@d/{number}", "cell": cell, "of": of, "title": "plain" if decoding == "ar"
        else decoding, "shows": shows, "prompt": f"p{prompt}", "digest": "d", "order": prompt, "category": "",
        "asked": {"text": f"prompt {prompt}", "source": None}, "sample": number, "seed": prompt, "failed": None,
        "exact": exact,
        "tokens": tokens, "token_hash": token_hash, "target_passes": passes, "accept_length": tokens / passes,
        "drafter_passes": 0, "row_passes": [passes], "rounds": passes - 1, "accepted": list(accepted), "shown": None,
        "time": {"seconds": seconds, "parts": {"prefill": prefill, **rest} if parts is None else dict(parts)}, **more,
    }  # fmt: skip


def failed(decoding: str, prompt: int, reason: str = "ValueError: no weights", **more: object) -> dict:
    one = sample(decoding, prompt, **more)
    return {**{name: one[name] for name in list(one)[: list(one).index("failed")]}, "failed": reason}


def score(one: Mapping, features: np.ndarray | None = None, **figures: float | None) -> dict:
    """What the judge of `header` says of a sample."""
    more = (
        {}
        if features is None
        else {"features": encode_row(features), "probabilities": encode_row(np.array([0.5, 0.5]))}
    )
    return {"kind": "score", "key": one["key"], "by": "j", "figures": figures, **more}


def real(prompt: int, features: np.ndarray, model: str = "t2i") -> dict:
    return {"kind": "real", "model": model, "key": f"p{prompt}", "by": "e", "features": encode_row(features)}


def written(folder: Path, records: Sequence[dict], first: Mapping | None = None, about: Mapping = ABOUT) -> Records:
    """The run of these records, as it is read back."""
    Shard(folder, about, dict(first or header())).add(records)
    return read_run(folder)


def with_media(folder: Path, one: dict, made: object) -> dict:
    """A sample whose output lies in the run's folder."""
    return {**one, "shown": store_output(folder, one["key"], made, one["shows"])}


def picture(value: int, side: int = 8) -> Image.Image:
    return Image.new("RGB", (side, side), (value, value, value))


def grid(count: int = 12) -> list[dict]:
    """Plain decoding in 2 s, an exact method in 1 s, a relaxed one in 0.5 s, scored, with real pictures of their law."""
    drawn, records = np.random.default_rng(0), []
    for prompt in range(count):
        cells = [
            sample("ar", prompt, 2.0, accepted=[0] * 10),
            sample("sjd:window=4", prompt, 1.0, prefill=0.5, passes=5, accepted=(0, 3, 0, 1, 2)),
            sample(
                "sjd:window=4", prompt, 0.5, prefill=0.25, passes=2, rule="gsd:group=3", exact=False, title="sjd + gsd"
            ),
        ]
        for place, cell in enumerate(cells):
            features = drawn.normal(3.0 if place == 2 else 0.0, 1.0, 2)
            records += [cell, score(cell, features, clip_score=80.0 - 10 * (place == 2) + prompt % 3)]
        records.append(real(prompt, drawn.normal(0.0, 1.0, 2)))
    return records

"""Which combinations of model and drafter are supported, as records for tables."""

from __future__ import annotations

from mmspec.core.rules.resolve import resolve
from mmspec.evaluate.shelf import DRAFTERS, drafter_names
from mmspec.vlm import supported as architectures


def model_records() -> list[dict]:
    """One record per model class: its inputs, the law of the output with each drafter, and how it is tested."""
    law = "exact" if all(resolve("exact", greedy=greedy).exact for greedy in (True, False)) else "relaxed"
    drafters = [name for name in drafter_names() if name != "none"]
    return [
        {"model": one.name, "prompts hold": one.inputs, **dict.fromkeys(drafters, law), "tested by": one.tested}
        for one in architectures()
    ]


def drafter_records() -> list[dict]:
    """One record per drafter: what it drafts and what training it needs."""
    chosen = {name: DRAFTERS[name] for name in drafter_names()}
    return [{"drafter": name, "drafts": one.drafts, "needs training": one.training} for name, one in chosen.items()]

"""Decodings of a model trained on the spot, on the same requests in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmspec.evaluate.engine.method import Method
from mmspec.evaluate.engine.rows import timed_row
from mmspec.evaluate.engine.runs import Runner, interleave

_SECONDS = ("seconds", "draft_ms", "target_ms", "verify_ms", "other_ms", "prefill_ms")


def met(
    runners: Mapping[str, Runner], cases: Sequence[Any], baselines: Mapping[str, str], shared: dict, device: torch.device
) -> list[dict]:  # fmt: skip
    """A row per runner, as benches have them; what fails has the reason. Times are those of a GPU, or None.

    baselines: runners that ratios are taken against, by the name fields call them by.   shared: what all rows have, their
    temperature among it.
    """
    results = interleave(cases, runners)
    greedy = shared["temperature"] == 0
    rows = [timed_row(Method(name, name), results, baselines, shared, greedy) for name in runners]
    on_gpu = device.type == "cuda"
    return rows if on_gpu else [row | dict.fromkeys(_SECONDS) for row in rows]


def figures(row: dict, against: Mapping[str, str]) -> str:
    """What a row says, in words.   against: fields of ratios, by what they are taken against."""
    if row["failed"]:
        return f"failed: {row['failed']}"
    ratios = ", ".join(f"{row[field]} x {what}" for field, what in against.items() if row.get(field) is not None)
    took = "" if row["seconds"] is None else f"{1e3 * row['seconds']:.0f} ms, "
    return f"{took}{row['accept_length']} a pass; {ratios}"

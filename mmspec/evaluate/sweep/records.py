"""Records of a run: one JSON object a sample, with all that its rows and plots are made of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.engine.provenance import output_digest
from mmspec.evaluate.engine.runs import Attempt, Failure, TimedRun

_COPIED = ("exact", "tokens", "target_passes", "accept_length", "drafter_passes")  # of a run, as they are
TIMES = ("time", "when")  # entries that differ from run to run


def request_seed(seed: int, prompt: str, sample: int) -> int:
    """The seed of one sample: of the run's, the prompt's name and the sample's number, never of who draws it."""
    text = f"{seed}/{prompt}/{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def record_key(cell: str, prompt: EvaluationPrompt, digest: str, sample: int) -> str:
    """What names a sample in a run: equal where the same was asked of the same cell."""
    return f"{cell}/{prompt.key}@{digest}/{sample}"


def sample_record(key: str, told: Mapping[str, Any], made: Attempt, shown: Mapping[str, Any] | None) -> dict[str, Any]:
    """The record of one request.   told: the cell, prompt and seed.   shown: where what was made lies, see `media`."""
    if isinstance(made, Failure):
        return {"kind": "sample", "key": key, **told, "failed": made.reason}
    return {
        "kind": "sample",
        "key": key,
        **told,
        "failed": None,
        **{name: getattr(made, name) for name in _COPIED},
        "token_hash": output_digest(made.output),
        "row_passes": list(made.row_passes),
        "rounds": made.decode_rounds,
        "accepted": [row[0] for row in made.accepted],
        "shown": shown,
        "time": {"seconds": made.seconds, "parts": None if made.parts is None else dict(made.parts)},
    }


@dataclass(frozen=True, slots=True)
class RecordedRun(TimedRun):
    """A request as its record tells of it: `output` is a hash that equals another's where all tokens do."""

    count: int = 0

    @property
    def tokens(self) -> int:
        return self.count


def recorded_run(record: Mapping[str, Any], *, decode_only: bool = False) -> Attempt:
    """The request of a sample's record.   decode_only: its seconds are those behind the prefill, a Failure where no one
    knows them."""
    if record["failed"] is not None:
        return Failure(record["failed"])
    seconds, parts = record["time"]["seconds"], record["time"]["parts"]
    if decode_only and parts is None:
        return Failure("it does not say how long its prefill took")
    return RecordedRun(
        seconds=seconds - parts["prefill"] if decode_only else seconds,
        output=((record["token_hash"],),),
        **{name: record[name] for name in _COPIED if name != "tokens"},
        parts=parts,
        row_passes=tuple(record["row_passes"]),
        rounds=record["rounds"],
        accepted=tuple((kept,) for kept in record["accepted"]),
        count=record["tokens"],
    )


def without_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record is the same whoever made it and when."""
    return {name: value for name, value in record.items() if name not in TIMES}


def encode_row(row: np.ndarray) -> str:
    """A float32 row as text, bit for bit."""
    return base64.b64encode(np.ascontiguousarray(row, dtype="<f4").tobytes()).decode("ascii")


def decode_row(text: str) -> np.ndarray:
    """The row of `encode_row`."""
    return np.frombuffer(base64.b64decode(text), dtype="<f4")

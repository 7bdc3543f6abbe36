"""Records of a run: one JSON object a sample, with all that its rows and plots are made of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mmspec.evaluate.engine.provenance import output_digest
from mmspec.evaluate.engine.runs import Attempt, Failure, TimedRun

_COPIED = ("exact", "tokens", "target_passes", "accept_length", "drafter_passes")  # of a run, as they are
TIMES = ("time", "when")  # entries that differ from run to run


def request_seed(seed: int, prompt: str, sample: int) -> int:
    """The seed of one sample: of the run's, the prompt's name and the sample's number, never of who draws it."""
    text = f"{seed}/{prompt}/{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def record_key(request: Mapping[str, Any]) -> str:
    """What names a sample in a run: equal where the same was asked of the same cell."""
    return "{cell}/{prompt}@{digest}/{sample}".format_map(request)


def sample_record(
    request: Mapping[str, Any], attempt: Attempt, shown: Mapping[str, Any] | None = None, *, compared: bool = False
) -> dict[str, Any]:
    """The record of one request.

    Args:
        request: Fields of the cell and of the request, see `CellGroup.fields` and `request_fields`.
        attempt: Its run, or its failure.
        shown: Where its output lies, see `media`.
        compared: Keep the output itself too, for `compared_run`.
    """
    key = record_key(request)
    if isinstance(attempt, Failure):
        return {"kind": "sample", "key": key, **request, "failed": attempt.reason}
    record = {
        "kind": "sample",
        "key": key,
        **request,
        "failed": None,
        **{name: getattr(attempt, name) for name in _COPIED},
        "token_hash": output_digest(attempt.output),
        "row_passes": list(attempt.row_passes),
        "rounds": attempt.decode_rounds,
        "accepted": [row[0] for row in attempt.accepted],
        "shown": shown,
        "time": {"seconds": attempt.seconds, "parts": None if attempt.parts is None else dict(attempt.parts)},
    }
    if compared:
        output = [[_plain(value) for value in row] for row in attempt.output]
        record |= {
            "output": output,
            "prefill": attempt.prefill,
            "peak_bytes": attempt.peak_bytes,
            "more": dict(attempt.more),
        }
        record["rounds"] = attempt.rounds
    return record


def _plain(value: Hashable) -> Hashable:
    """A value of an output as JSON holds it: of bytes, which can be long, a hash."""
    return hashlib.sha256(value).hexdigest()[:32] if isinstance(value, bytes) else value


def compared_run(record: Mapping[str, Any]) -> Attempt:
    """The request of a record that keeps its output, as rows compare it with others."""
    run = recorded_run(record)
    if isinstance(run, Failure):
        return run
    output = tuple(map(tuple, record["output"]))
    return replace(
        run, output=output, count=None, prefill=record["prefill"], peak_bytes=record["peak_bytes"], more=record["more"]
    )


def recorded_run(record: Mapping[str, Any], *, decode_only: bool = False) -> Attempt:
    """The request of a sample's record: its `output` is a hash that equals another's where all tokens do.

    decode_only: its seconds are those behind the prefill, a Failure where no one knows them.
    """
    if record["failed"] is not None:
        return Failure(record["failed"])
    seconds, parts = record["time"]["seconds"], record["time"]["parts"]
    if decode_only and parts is None:
        return Failure("it does not say how long its prefill took")
    return TimedRun(
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

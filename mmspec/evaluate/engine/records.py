"""Records of a run: one JSON object per sample, from which all rows and plots are computed."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mmspec.evaluate.base.provenance import output_digest
from mmspec.evaluate.engine.runs import Attempt, Failure
from mmspec.run.timed_run import TimedRun

_COPIED = ("exact", "tokens", "target_passes", "accept_length", "drafter_passes")  # fields copied from a run
TIMES = ("time", "when")  # entries that differ from run to run


def request_seed(seed: int, prompt: str, sample: int) -> int:
    """Return the seed of a sample: a hash of the run's seed, the prompt's name and the sample's number. It does not
    depend on the worker that draws the sample."""
    text = f"{seed}/{prompt}/{sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def record_key(request: Mapping[str, Any]) -> str:
    """Return the name of a sample in its run; equal requests to the same cell have equal names."""
    return "{cell}/{prompt}@{digest}/{sample}".format_map(request)


def sample_record(
    request: Mapping[str, Any], attempt: Attempt, shown: Mapping[str, Any] | None = None, *, compared: bool = False
) -> dict[str, Any]:
    """Return the record of a request. `request` holds the fields of the cell and of the request, see `CellGroup.fields`
    and `request_fields`; `shown` is the entry of the stored output, see `media`. `compared` stores the output itself as
    well, for `compared_run`."""
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
    """Return a value of an output as JSON holds it; bytes become a hash."""
    return hashlib.sha256(value).hexdigest()[:32] if isinstance(value, bytes) else value


def compared_run(record: Mapping[str, Any]) -> Attempt:
    """Return the run of a record that stores its output, so that rows can compare outputs."""
    run = recorded_run(record)
    if isinstance(run, Failure):
        return run
    output = tuple(map(tuple, record["output"]))
    return replace(
        run, output=output, count=None, prefill=record["prefill"], peak_bytes=record["peak_bytes"], more=record["more"]
    )


def recorded_run(record: Mapping[str, Any], *, decode_only: bool = False) -> Attempt:
    """Return the run of a sample's record; its `output` is a hash that is equal for equal tokens. `decode_only` counts
    the seconds after the prefill alone: a Failure where the record does not have them."""
    if record["failed"] is not None:
        return Failure(record["failed"])
    seconds, parts = record["time"]["seconds"], record["time"]["parts"]
    if decode_only and parts is None:
        return Failure("its record has no time of the prefill")
    return TimedRun(
        seconds=seconds - parts["prefill"] if decode_only else seconds,
        output=((record["token_hash"],),),
        **{name: record[name] for name in _COPIED if name != "tokens"},
        parts=parts,
        row_passes=tuple(record["row_passes"]),
        rounds=record["rounds"],
        accepted=tuple((count,) for count in record["accepted"]),
        count=record["tokens"],
    )


def without_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that do not depend on when and where it was made."""
    return {name: value for name, value in record.items() if name not in TIMES}


def encode_row(row: np.ndarray) -> str:
    """Encode a float32 row as base64 text, bit for bit."""
    return base64.b64encode(np.ascontiguousarray(row, dtype="<f4").tobytes()).decode("ascii")


def decode_row(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")

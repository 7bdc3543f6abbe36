"""The table of a record's fields and their types; a run's folder holds nothing else."""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.evaluate.sweep.field_types import (
    ANY,
    NAME,
    SWITCH,
    TEXT,
    DependentType,
    FieldType,
    ListType,
    ObjectType,
    ValueType,
    field_faults,
    number,
    optional,
    whole_number,
)
from mmspec.evaluate.sweep.media import inside
from mmspec.evaluate.sweep.records import decode_row

SCHEMA = 1

_SECONDS = number(0, 1e9)
_FIGURE = number(-1e30, 1e30)
_PARTS = dict.fromkeys(("prefill", "draft", "target", "verify", "other"), _SECONDS)
_SIMPLE = ValueType(
    "a text or a number", lambda value: value is None or isinstance(value, str | bool) or _FIGURE.holds(value)
)
_SHOWN: dict[str, FieldType] = {
    "text": ObjectType({"text": TEXT}),
    "picture": ObjectType({"file": TEXT, "frames": whole_number(1), "pixels": TEXT}),
}
_SHOWN["film"] = _SHOWN["picture"]

_JUDGE = ObjectType({"scorers": ObjectType(others=TEXT), "hash": TEXT})
_EXTRACTOR = {"extractor": TEXT, "extractor_hash": TEXT, "dim": whole_number(1)}
_SEEING_JUDGE = ObjectType({**_JUDGE.fields, **_EXTRACTOR})
_ANSWERED = {
    "exact": SWITCH,
    "tokens": whole_number(1),
    "token_hash": TEXT,
    "target_passes": whole_number(0),
    "accept_length": _FIGURE,
    "drafter_passes": whole_number(0),
    "row_passes": ListType(whole_number(0)),
    "rounds": optional(whole_number(0)),
    "accepted": ListType(optional(whole_number(0))),
    "time": ObjectType({"seconds": number(1e-9, 1e9), "parts": optional(ObjectType(_PARTS, others=_SECONDS))}),
}
_DRAWN = {
    "key": TEXT,
    "cell": NAME,
    "of": ObjectType(
        {
            "domain": TEXT,
            "model": TEXT,
            "decoding": TEXT,
            "rule": TEXT,
            "temperature": number(0, 1e6),
            "batch": whole_number(1),
        },
        others=_SIMPLE,
    ),
    "title": TEXT,
    "shows": ValueType(f"one of {', '.join(_SHOWN)}", lambda value: isinstance(value, str) and value in _SHOWN),
    "prompt": TEXT,
    "digest": TEXT,
    "order": whole_number(0),
    "category": TEXT,
    "asked": ObjectType({"text": TEXT, "source": optional(ObjectType())}),
    "sample": whole_number(0),
    "seed": whole_number(0),
    "failed": optional(TEXT),
}
_FEATURES = {"features": optional(TEXT), "probabilities": optional(TEXT)}


def _sample(record: Any) -> ObjectType:
    if isinstance(record.get("failed"), str):
        return ObjectType(_DRAWN)
    shown = _SHOWN.get(record.get("shows")) if isinstance(record.get("shows"), str) else None
    return ObjectType({**_DRAWN, **_ANSWERED, "shown": ANY if shown is None else optional(shown)})


RECORDS: dict[str, FieldType] = {
    "header": ObjectType(
        {
            "schema": whole_number(SCHEMA, SCHEMA),
            "about": ObjectType({"code": TEXT, "seed": whole_number(0)}),
            "versions": ObjectType(others=TEXT),
            "processor": TEXT,
            "cores": optional(whole_number(1)),
            "threads": whole_number(1),
            "system": TEXT,
            "command": TEXT,
            "date": TEXT,
            "workers": whole_number(1),
            "part": ListType(whole_number(1), 2),
            "prompts": ObjectType(others=ObjectType({"set": TEXT, "count": whole_number(0), "hash": TEXT})),
            "judges": ObjectType(
                others=DependentType(
                    lambda value: _SEEING_JUDGE if isinstance(value, dict) and _EXTRACTOR.keys() & value else _JUDGE
                )
            ),
        }
    ),
    "model": ObjectType({"model": TEXT, "name": TEXT, "dtype": TEXT, "device": TEXT}),
    "sample": DependentType(_sample),
    "score": ObjectType({"key": TEXT, "by": TEXT, "figures": ObjectType(others=optional(_FIGURE))}, _FEATURES),
    "real": ObjectType({"model": TEXT, "key": TEXT, "by": TEXT, "features": TEXT}, {"probabilities": optional(TEXT)}),
}


def check_record(record: Mapping[str, Any], folder: Path, place: str) -> None:
    """Check one line of a shard against the table.

    Args:
        record: the line, a JSON object.
        folder: the run's folder, which no path of a record may lead out of.
        place: the file and the line, for errors.

    Raises:
        ValueError: names the place and the first wrong field.
    """
    for fault in _faults(record, folder):
        raise ValueError(f"{place}: {fault}; move the file away")


def _faults(record: Mapping[str, Any], folder: Path) -> Iterator[str]:
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in RECORDS:
        yield f"expected records of a sweep, whose kind is one of {', '.join(RECORDS)}, got {str(kind)[:40]!r}"
        return
    yield from field_faults(ObjectType({"run": TEXT}), record, "")
    yield from field_faults(RECORDS[kind], record, "")
    if kind == "sample":
        yield from _wrong_sample(record, folder)
    for name in _FEATURES:
        if record.get(name) is not None and kind in ("score", "real"):
            yield from _wrong_row(name, record[name])


def _wrong_sample(record: Mapping[str, Any], folder: Path) -> Iterator[str]:
    key = f"{record['cell']}/{record['prompt']}@{record['digest']}/{record['sample']}"
    if record["key"] != key:
        yield f"expected the key {key[:80]!r}, which the record's other fields give, got {record['key'][:80]!r}"
    if record["failed"] is not None:
        return
    seconds, parts = record["time"]["seconds"], record["time"]["parts"]
    if parts is not None and parts["prefill"] >= seconds:
        yield f"expected a prefill that is shorter than all of time.seconds, {seconds:g}, got {parts['prefill']:g}"
    if record["shown"] is not None and "file" in record["shown"]:
        try:
            inside(folder, record["shown"]["file"])
        except ValueError as error:
            yield str(error)


def _wrong_row(name: str, text: str) -> Iterator[str]:
    try:
        row = decode_row(text)
    except (binascii.Error, ValueError):
        row = np.empty(0, np.float32)
    if not len(row) or not np.isfinite(row).all():
        yield f"expected finite float32 numbers in base64 as {name}, got {text[:40]!r}"

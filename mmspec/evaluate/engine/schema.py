"""The fields and types of every record, and the check of a record against them."""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.evaluate.base.media import inside
from mmspec.evaluate.engine.records import decode_row, record_key

SCHEMA = 1
_QUOTED = 60  # characters of a wrong value that an error quotes

# a type of field: yields an error, "expected ..., got ...", for every wrong part of the value of this name
FieldType = Callable[[Any, str], Iterator[str]]


def value(expected: str, holds: Callable[[Any], bool]) -> FieldType:
    """Return the type of single values; `expected` says in words which values `holds` allows."""

    def faults(data: Any, name: str) -> Iterator[str]:
        if not holds(data):
            yield f"expected {expected} as {name}, got {json.dumps(data)[:_QUOTED]}"

    return faults


def items(item: FieldType, count: int | None = None) -> FieldType:
    """Return the type of lists of `count` items, None for any number."""
    is_list = value(
        "a list" if count is None else f"a list of {count}",
        lambda data: isinstance(data, list) and count in (None, len(data)),
    )

    def faults(data: Any, name: str) -> Iterator[str]:
        wrong = list(is_list(data, name))
        yield from wrong
        for number, entry in enumerate(() if wrong else data):
            yield from item(entry, f"{name}[{number}]")

    return faults


def fields(
    needed: Mapping[str, FieldType] | None = None,
    more: Mapping[str, FieldType] | None = None,
    others: FieldType | None = None,
) -> FieldType:
    """Return the type of objects with needed fields, optional fields (`more`), and the type of all others."""
    needed, known = needed or {}, {**(needed or {}), **(more or {})}
    is_object = value("an object", lambda data: isinstance(data, dict))

    def faults(data: Any, name: str) -> Iterator[str]:
        wrong = list(is_object(data, name))
        yield from wrong
        if wrong:
            return
        inside_of = f"{name}." if name else ""
        yield from (f"expected a field {inside_of}{part}, got none" for part in needed if part not in data)
        for part, content in data.items():
            kind = known.get(part, others)
            if kind is not None:
                yield from kind(content, f"{inside_of}{part}")

    return faults


def optional(kind: FieldType) -> FieldType:
    """Return the type of values that may be null instead."""
    return lambda data, name: iter(()) if data is None else kind(data, name)


def whole_number(least: int, most: int = 10**12) -> FieldType:
    """Return the type of whole numbers in a range, both ends included."""
    return value(
        f"a whole number of {least} to {most}",
        lambda data: isinstance(data, int) and not isinstance(data, bool) and least <= data <= most,
    )


def _is_number(data: Any, least: float, most: float) -> bool:
    # a comparison with NaN is false
    return isinstance(data, int | float) and not isinstance(data, bool) and least <= data <= most


def number(least: float, most: float) -> FieldType:
    """Return the type of finite numbers in a range, both ends included."""
    return value(f"a number of {least:g} to {most:g}", lambda data: _is_number(data, least, most))


ANY = value("any value", lambda data: True)
TEXT = value("a text", lambda data: isinstance(data, str))
SWITCH = value("true or false", lambda data: isinstance(data, bool))
NAME = value(
    "a name without separators of paths",
    lambda data: isinstance(data, str) and data.strip(".") != "" and not set(data) & set("/\\\0"),
)
_SECONDS, _FIGURE = number(0, 1e9), number(-1e30, 1e30)
_SIMPLE = value(
    "a text or a number",
    lambda data: data is None or isinstance(data, str | bool) or _is_number(data, -1e30, 1e30),
)
_PARTS = dict.fromkeys(("prefill", "draft", "target", "verify", "other"), _SECONDS)
_FILE = fields({"file": TEXT, "frames": whole_number(1), "pixels": TEXT})
_SHOWN: dict[str, FieldType] = {"text": fields({"text": TEXT}), "picture": _FILE, "film": _FILE}
_JUDGE = {"scorers": fields(others=TEXT), "hash": TEXT}
_EXTRACTOR = {"extractor": TEXT, "extractor_hash": TEXT, "dim": whole_number(1)}
_ANSWERED = {
    "exact": SWITCH,
    "tokens": whole_number(1),
    "token_hash": TEXT,
    "target_passes": whole_number(0),
    "accept_length": _FIGURE,
    "drafter_passes": whole_number(0),
    "row_passes": items(whole_number(0)),
    "rounds": optional(whole_number(0)),
    "accepted": items(optional(whole_number(0))),
    "time": fields({"seconds": number(1e-9, 1e9), "parts": optional(fields(_PARTS, others=_SECONDS))}),
}
_CELL = {
    **dict.fromkeys(("domain", "model", "decoding", "rule"), TEXT),
    "temperature": number(0, 1e6),
    "batch": whole_number(1),
}
_DRAWN = {
    "key": TEXT,
    "cell": NAME,
    "of": fields(_CELL, others=_SIMPLE),
    "title": TEXT,
    "shows": value(f"one of {', '.join(_SHOWN)}", lambda data: isinstance(data, str) and data in _SHOWN),
    "prompt": TEXT,
    "digest": TEXT,
    "order": whole_number(0),
    "category": TEXT,
    "asked": fields({"text": TEXT, "source": optional(fields())}),
    "sample": whole_number(0),
    "seed": whole_number(0),
    "failed": optional(TEXT),
}
# fields that a bench stores to compare outputs
_COMPARED = {
    "output": items(items(_SIMPLE)),
    "prefill": optional(_SECONDS),
    "peak_bytes": optional(whole_number(0)),
    "more": fields(),
}
_FEATURES = {"features": optional(TEXT), "probabilities": optional(TEXT)}


def _judge(data: Any, name: str) -> Iterator[str]:
    sees = isinstance(data, dict) and _EXTRACTOR.keys() & data
    return fields({**_JUDGE, **_EXTRACTOR} if sees else _JUDGE)(data, name)


def _sample(record: Any, name: str) -> Iterator[str]:
    if isinstance(record.get("failed"), str):
        return fields(_DRAWN)(record, name)
    shown = _SHOWN.get(record.get("shows")) if isinstance(record.get("shows"), str) else None
    return fields({**_DRAWN, **_ANSWERED, "shown": ANY if shown is None else optional(shown)}, _COMPARED)(record, name)


RECORDS: dict[str, FieldType] = {
    "header": fields(
        {
            "schema": whole_number(SCHEMA, SCHEMA),
            "about": fields({"code": TEXT, "seed": whole_number(0)}, {"device": TEXT, "dtype": TEXT}),
            "versions": fields(others=TEXT),
            **dict.fromkeys(("processor", "system", "command", "date"), TEXT),
            "cores": optional(whole_number(1)),
            "threads": whole_number(1),
            "workers": whole_number(1),
            "part": items(whole_number(1), 2),
            "prompts": fields(others=fields({"set": TEXT, "count": whole_number(0), "hash": TEXT})),
            "judges": fields(others=_judge),
        },
        {"device": TEXT, "dtype": TEXT},
    ),
    "model": fields(dict.fromkeys(("model", "name", "dtype", "device"), TEXT)),
    "sample": _sample,
    "score": fields({"key": TEXT, "by": TEXT, "figures": fields(others=optional(_FIGURE))}, _FEATURES),
    "real": fields(dict.fromkeys(("model", "key", "by", "features"), TEXT), {"probabilities": optional(TEXT)}),
    "part": fields({"part": fields(), "value": ANY}),
}


def check_record(record: Mapping[str, Any], folder: Path, place: str) -> None:
    """Check a record of a shard: no path may leave the run's folder. The error names `place`, the file and the line,
    and the first wrong field."""
    for fault in _faults(record, folder):
        raise ValueError(f"{place}: {fault}; move the file away")


def _faults(record: Mapping[str, Any], folder: Path) -> Iterator[str]:
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in RECORDS:
        yield f"expected records of a run, whose kind is one of {', '.join(RECORDS)}, got {str(kind)[:40]!r}"
        return
    yield from fields({"run": TEXT})(record, "")
    yield from RECORDS[kind](record, "")
    if kind == "sample":
        yield from _wrong_sample(record, folder)
    for name in _FEATURES:
        if record.get(name) is not None and kind in ("score", "real"):
            yield from _wrong_row(name, record[name])


def _wrong_sample(record: Mapping[str, Any], folder: Path) -> Iterator[str]:
    key = record_key(record)
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

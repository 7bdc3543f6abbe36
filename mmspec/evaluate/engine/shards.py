"""A run on disk: JSONL shards, one per writer, that grow by whole lines; their union is the run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmspec.evaluate.base.media import inside
from mmspec.evaluate.engine.records import decode_row, without_times
from mmspec.evaluate.engine.schema import SCHEMA, check_record
from mmspec.io.files import append_lines
from mmspec.io.readers import read_json_lines

FOLDER = "shards"


def run_name(about: Mapping[str, Any]) -> str:
    """Return the hash of the fields that all records of a run share."""
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def part_name(part: Mapping[str, Any]) -> str:
    return json.dumps(part, sort_keys=True, default=str)


class Shard:
    """The file that a single writer appends to; None for a new shard in the run's folder. Writers never share a shard,
    and a shard is never rewritten. After a kill all lines but the last are whole, and readers skip an incomplete last
    line. Shards of several machines are merged by copying them into one folder.

    `about` decides the figures of the run; the first line has it and the fields of `header`."""

    def __init__(self, folder: Path, about: Mapping[str, Any], header: Mapping[str, Any], file: Path | None = None):
        self.run = run_name(about)
        host = re.sub(r"[^A-Za-z0-9]+", "-", platform.node())[:24] or "host"
        self.file = file or folder / FOLDER / f"{host}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._header = {"kind": "header", "schema": SCHEMA, "about": dict(about), **header}
        self.begun = False

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records in one write, after the header if they are the first."""
        lines = list(records) if self.begun else [self._header, *records]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        append_lines(
            self.file, [json.dumps({"run": self.run, **line}, ensure_ascii=False, allow_nan=False) for line in lines]
        )
        self.begun = True


@dataclass(slots=True)
class Records:
    """All records of a run."""

    folder: Path
    headers: list[dict] = field(default_factory=list)  # of every writer
    models: dict[str, dict] = field(default_factory=dict)  # the precision and device of every model, by name
    samples: dict[str, dict] = field(default_factory=dict)  # by key
    scores: dict[tuple[str, str], dict] = field(default_factory=dict)  # by (key, scorer's hash)
    # the features of real pictures by (model, key, extractor's hash)
    real: dict[tuple[str, str, str], dict] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)  # the finished parts of a bench by name
    # the length of feature rows by (scorer's or extractor's hash, field)
    widths: dict[tuple[str, str], int] = field(default_factory=dict)


def read_run(folder: Path) -> Records:
    """Return the union of a run's shards, in the order of their names and lines; duplicates count once. The folder may
    also be the log of a bench, whose last run is read. No shards, shards of several runs, and records that are invalid
    or contradict another are errors."""
    records = read_log(folder) if folder.is_file() else read_shards(folder)
    if not records.headers:
        raise ValueError(
            f"RUN: expected a folder with shards of a run, got none in {str(folder)!r}, run `mmspec evaluate` first"
        )
    return records


def read_shards(folder: Path, run: str | None = None) -> Records:
    """Return the union of a run's shards, which may be empty; None for any single run. The errors are those of
    `read_run`."""
    records = Records(folder)
    for file in sorted((folder / FOLDER).glob("*.jsonl")):
        inside(folder, f"{FOLDER}/{file.name}")
        for number, record in enumerate(read_json_lines(file, torn=True), 1):
            place = f"{file}, line {number}"
            _check(record, folder, place)
            run = _same_run(record, run, place, is_first=number == 1)
            _add_record(records, record, place)
    return records


def read_log(file: Path, run: str | None = None) -> Records:
    """Read the records of a run, None for the last, from a file that several runs may have appended to, or that does
    not exist yet."""
    records = Records(file.parent)
    lines = read_json_lines(file, torn=True) if file.is_file() else []
    run = lines[-1].get("run") if run is None and lines else run
    for number, record in enumerate(lines, 1):
        place = f"{file}, line {number}"
        if "kind" not in record or record.get("run") == run:
            _check(record, records.folder, place)
            _add_record(records, record, place)
    return records


def _check(record: Mapping[str, Any], folder: Path, place: str) -> None:
    # the schema is checked first, since another schema has other fields
    if record.get("kind") == "header" and record.get("schema") != SCHEMA:
        raise ValueError(
            f"{place}: expected records of schema {SCHEMA}, got {record.get('schema')!r}; use the version of mmspec that "
            "wrote it"
        )
    check_record(record, folder, place)


def _same_run(record: Mapping[str, Any], run: str | None, place: str, *, is_first: bool) -> str:
    """Return the run of a record, which must be `run`, and must begin a shard with its header."""
    is_header = record["kind"] == "header"
    if is_first != is_header:
        raise ValueError(
            f"{place}: expected a header as the first line of a shard and nowhere else, got the kind {record['kind']!r}; "
            "move the file away"
        )
    if run not in (None, record["run"]) or (is_header and record["run"] != run_name(record["about"])):
        raise ValueError(
            f"{place}: expected shards of one run, got a record of another seed, code, device or dtype; write to another "
            "folder or run again in an empty one"
        )
    return record["run"]


def _add_record(records: Records, record: dict, place: str) -> None:
    kind = record["kind"]
    if kind == "header":
        records.headers.append(record)
        for judge in record["judges"].values():
            if "extractor" in judge:
                records.widths |= dict.fromkeys(
                    ((judge["hash"], "features"), (judge["extractor_hash"], "features")), judge["dim"]
                )
    elif kind == "model":
        records.models[record["model"]] = record
    elif kind == "part":
        records.parts[part_name(record["part"])] = record["value"]
    elif kind == "sample":
        _once(records.samples, record["key"], record, place)
    else:
        _check_width(records, record, place)
        if kind == "score":
            records.scores[record["key"], record["by"]] = record
        else:
            records.real[record["model"], record["key"], record["by"]] = record


def _check_width(records: Records, record: dict, place: str) -> None:
    """Check that feature rows are as long as in the judge's header and its earlier records."""
    for name in ("features", "probabilities"):
        if record.get(name) is not None:
            width = len(decode_row(record[name]))
            known = records.widths.setdefault((record["by"], name), width)
            if width != known:
                raise ValueError(
                    f"{place}: expected {known} numbers as {name}, as the judge writes, got {width}; move the file away"
                )


def _once(samples: dict[str, dict], key: str, record: dict, place: str) -> None:
    """Add a sample; a success replaces a failure, and equal duplicates are ignored."""
    known = samples.get(key)
    if known is not None and known["failed"] is None:
        if record["failed"] is None and _comparable(known) != _comparable(record):
            raise ValueError(
                f"{place}: expected the output that another shard has for {key}, got another output; shards of machines that "
                "compute differently cannot be merged, move one away"
            )
        return
    samples[key] = record


def _comparable(record: dict) -> dict:
    return {name: value for name, value in without_times(record).items() if name != "run"}

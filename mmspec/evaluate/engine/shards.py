"""A run on the disk: JSONL shards that grow by whole lines, one a writer, whose union is the run."""

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

from mmspec.evaluate.engine.media import inside
from mmspec.evaluate.engine.records import decode_row, without_times
from mmspec.evaluate.engine.schema import SCHEMA, check_record
from mmspec.io.files import append_lines
from mmspec.io.readers import read_json_lines

FOLDER = "shards"


def run_name(about: Mapping[str, Any]) -> str:
    """The hash of what all records of a run have in common."""
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def part_name(part: Mapping[str, Any]) -> str:
    """What names a finished part of a bench."""
    return json.dumps(part, sort_keys=True, default=str)


class Shard:
    """The file that one writer adds to. No two writers share one, and none is ever changed: a kill leaves whole lines but
    for the last, which readers leave out, and shards of several machines are merged by copying them into one folder.

    about: what decides all figures of the run.   header: what else is said once, with `about` in the first line.
    file: None for a new one in the run's folder.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], header: Mapping[str, Any], file: Path | None = None):
        self.run = run_name(about)
        host = re.sub(r"[^A-Za-z0-9]+", "-", platform.node())[:24] or "host"
        self.file = file or folder / FOLDER / f"{host}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._header = {"kind": "header", "schema": SCHEMA, "about": dict(about), **header}
        self.begun = False

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds records in one write; the header stands before the first."""
        lines = list(records) if self.begun else [self._header, *records]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        append_lines(
            self.file, [json.dumps({"run": self.run, **line}, ensure_ascii=False, allow_nan=False) for line in lines]
        )
        self.begun = True


@dataclass(slots=True)
class Records:
    """All that a run has. headers: of every writer.   models: what a model was run in, by name.   samples: by key.
    scores: by (key, scorer's hash).   real: features of real pictures, by (model, key, extractor's hash).
    parts: what a bench has finished, by its name.   widths: the length of rows, by (scorer's or extractor's hash, field).
    """

    folder: Path
    headers: list[dict] = field(default_factory=list)
    models: dict[str, dict] = field(default_factory=dict)
    samples: dict[str, dict] = field(default_factory=dict)
    scores: dict[tuple[str, str], dict] = field(default_factory=dict)
    real: dict[tuple[str, str, str], dict] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    widths: dict[tuple[str, str], int] = field(default_factory=dict)


def read_run(folder: Path) -> Records:
    """The union of a run's shards, in the order of their names and lines; what stands in several is taken once.

    folder: of the run, or the file that a bench keeps its records in, of which the last bench is taken.

    Raises ValueError for a folder without shards, shards of several runs, records that contradict one another or do not fit
    the table in `schema`, and files that hold anything else.
    """
    found = read_log(folder) if folder.is_file() else read_shards(folder)
    if not found.headers:
        raise ValueError(
            f"RUN: expected a folder with shards of a run, got none in {str(folder)!r}, run `mmspec evaluate` first"
        )
    return found


def read_shards(folder: Path, run: str | None = None) -> Records:
    """`read_run` that takes an empty folder too.   run: the one that shards have to be of, any single one for None."""
    found = Records(folder)
    for file in sorted((folder / FOLDER).glob("*.jsonl")):
        inside(folder, f"{FOLDER}/{file.name}")
        for number, record in enumerate(read_json_lines(file, torn=True), 1):
            place = f"{file}, line {number}"
            _check(record, folder, place)
            run = _same_run(record, run, place, is_first=number == 1)
            _add_record(found, record, place)
    return found


def read_log(file: Path, run: str | None = None) -> Records:
    """The records of one run in a file that several may have written to, one after another.

    Args:
        file: The file; there may be none yet.
        run: The run, None for the last.

    Raises:
        ValueError: The file holds anything but records.
    """
    found = Records(file.parent)
    lines = read_json_lines(file, torn=True) if file.is_file() else []
    run = lines[-1].get("run") if run is None and lines else run
    for number, record in enumerate(lines, 1):
        place = f"{file}, line {number}"
        if "kind" not in record or record.get("run") == run:
            _check(record, found.folder, place)
            _add_record(found, record, place)
    return found


def _check(record: Mapping[str, Any], folder: Path, place: str) -> None:
    # before its fields are looked at: they may be others
    if record.get("kind") == "header" and record.get("schema") != SCHEMA:
        raise ValueError(
            f"{place}: expected records of schema {SCHEMA}, got {record.get('schema')!r}; use the version of mmspec that "
            "wrote it"
        )
    check_record(record, folder, place)


def _same_run(record: Mapping[str, Any], run: str | None, place: str, *, is_first: bool) -> str:
    """Return the run of a record.

    Raises:
        ValueError: for a shard that does not begin with its header, and for a record of another run.
    """
    is_header = record["kind"] == "header"
    if is_first != is_header:
        raise ValueError(
            f"{place}: expected a header as the first line of a shard and nowhere else, got the kind {record['kind']!r}; "
            "move the file away"
        )
    if run not in (None, record["run"]) or (is_header and record["run"] != run_name(record["about"])):
        raise ValueError(
            f"{place}: expected shards of one run, got a record of another seed or code; write to another folder or run "
            "again in an empty one"
        )
    return record["run"]


def _add_record(found: Records, record: dict, place: str) -> None:
    kind = record["kind"]
    if kind == "header":
        found.headers.append(record)
        for judge in record["judges"].values():
            if "extractor" in judge:
                found.widths |= dict.fromkeys(
                    ((judge["hash"], "features"), (judge["extractor_hash"], "features")), judge["dim"]
                )
    elif kind == "model":
        found.models[record["model"]] = record
    elif kind == "part":
        found.parts[part_name(record["part"])] = record["value"]
    elif kind == "sample":
        _once(found.samples, record["key"], record, place)
    else:
        _check_width(found, record, place)
        if kind == "score":
            found.scores[record["key"], record["by"]] = record
        else:
            found.real[record["model"], record["key"], record["by"]] = record


def _check_width(found: Records, record: dict, place: str) -> None:
    """Refuse rows of another length than the judge's header or its earlier records have."""
    for name in ("features", "probabilities"):
        if record.get(name) is not None:
            width = len(decode_row(record[name]))
            known = found.widths.setdefault((record["by"], name), width)
            if width != known:
                raise ValueError(
                    f"{place}: expected {known} numbers as {name}, as the judge writes, got {width}; move the file away"
                )


def _once(samples: dict[str, dict], key: str, record: dict, place: str) -> None:
    """Takes a sample. Two writers may have made the same one; a failure gives way to a success."""
    known = samples.get(key)
    if known is not None and known["failed"] is None:
        if record["failed"] is None and _comparable(known) != _comparable(record):
            raise ValueError(
                f"{place}: expected the output that another shard has for {key}, got another one; shards of machines that "
                "compute differently cannot be merged, move one away"
            )
        return
    samples[key] = record


def _comparable(record: dict) -> dict:
    return {name: value for name, value in without_times(record).items() if name != "run"}

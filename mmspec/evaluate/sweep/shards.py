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

from mmspec.core.files import append_lines
from mmspec.core.readers import read_json_lines
from mmspec.evaluate.sweep.media import inside
from mmspec.evaluate.sweep.records import SCHEMA, without_times

FOLDER = "shards"


def run_name(about: Mapping[str, Any]) -> str:
    """The hash of what all records of a run have in common."""
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


class Shard:
    """The file that one writer adds to. No two writers share one, and none is ever changed: a kill leaves whole lines but
    for the last, which readers leave out, and shards of several machines are merged by copying them into one folder.

    about: what decides all figures of the run.   header: what else is said once, with `about` in the first line.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], header: Mapping[str, Any]):
        self.run = run_name(about)
        host = re.sub(r"[^A-Za-z0-9]+", "-", platform.node())[:24] or "host"
        self.file = folder / FOLDER / f"{host}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._header = {"kind": "header", "schema": SCHEMA, "about": dict(about), **header}
        self._begun = False

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds records in one write; the header stands before the first."""
        lines = list(records) if self._begun else [self._header, *records]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        append_lines(
            self.file, [json.dumps({"run": self.run, **line}, ensure_ascii=False, allow_nan=False) for line in lines]
        )
        self._begun = True


@dataclass(slots=True)
class Records:
    """All that a run has. headers: of every writer.   models: what a model was run in, by name.   samples: by key.
    scores: by (key, scorer's hash).   real: features of real pictures, by (model, key, extractor's hash).
    """

    folder: Path
    headers: list[dict] = field(default_factory=list)
    models: dict[str, dict] = field(default_factory=dict)
    samples: dict[str, dict] = field(default_factory=dict)
    scores: dict[tuple[str, str], dict] = field(default_factory=dict)
    real: dict[tuple[str, str, str], dict] = field(default_factory=dict)

    @property
    def runs(self) -> set[str]:
        return {one["run"] for one in self.headers}


def read_run(folder: Path) -> Records:
    """The union of a run's shards, in the order of their names and lines; what stands in several is taken once.

    Raises ValueError for a folder without shards, shards of several runs, records that contradict one another, and files that
    hold anything else.
    """
    found = read_shards(folder)
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
        for record in read_json_lines(file, torn=True):
            _take(found, record, file)
    others = found.runs - {run} if run is not None else found.runs
    if len(others) > (0 if run is not None else 1):
        raise ValueError(
            f"{folder}: expected shards of one run, got some of another seed or code; write to another folder or run "
            "again in an empty one"
        )
    return found


def _take(found: Records, record: dict, file: Path) -> None:
    try:
        kind = record["kind"]
        if kind == "header":
            if record["schema"] != SCHEMA:
                raise ValueError(
                    f"{file}: expected records of schema {SCHEMA}, got {record['schema']}; use the version of mmspec "
                    "that wrote it"
                )
            found.headers.append(record)
        elif kind == "model":
            found.models[record["model"]] = record
        elif kind == "sample":
            _once(found.samples, record["key"], record, file)
        elif kind == "score":
            found.scores[record["key"], record["by"]] = record
        elif kind == "real":
            found.real[record["model"], record["key"], record["by"]] = record
        else:
            raise KeyError(kind)
    except KeyError as error:
        raise ValueError(
            f"{file}: expected records of a sweep, got a line without {error}; move the file away"
        ) from error


def _once(samples: dict[str, dict], key: str, record: dict, file: Path) -> None:
    """Takes a sample. Two writers may have made the same one; a failure gives way to a success."""
    known = samples.get(key)
    if known is not None and known["failed"] is None:
        if record["failed"] is None and _told(known) != _told(record):
            raise ValueError(
                f"{file}: expected the output that another shard has for {key}, got another one; shards of machines that "
                "compute differently cannot be merged, move one away"
            )
        return
    samples[key] = record


def _told(record: dict) -> dict:
    return {name: value for name, value in without_times(record).items() if name != "run"}

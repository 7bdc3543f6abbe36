"""The resume log of a bench: its records as they come, so that a stopped bench continues where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from mmspec.evaluate.base.prompt import EvaluationPrompt, request_fields
from mmspec.evaluate.base.provenance import environment
from mmspec.evaluate.engine.records import compared_run, record_key, sample_record
from mmspec.evaluate.engine.runs import Attempt
from mmspec.evaluate.engine.shards import Records, Shard, part_name, read_log, run_name
from mmspec.evaluate.engine.suite import CellGroup
from mmspec.io.files import whole_lines
from mmspec.io.interrupts import Stopped


def log_beside(file: Path | None) -> Path | None:
    """Return the path of the resume log beside a results file; None without a file."""
    return None if file is None else file.with_name(f"{file.name}.part.jsonl")


class BenchLog:
    """The resume log of a bench: it reads the records of this bench from a file, None for no file, and appends new
    records. A bench stores every sample and every finished part: the rows of a setting, or a judged row.

    Each record names its run by a hash of `about`: the bench and its settings, the code, the machine. Records of
    another run are therefore ignored. An interrupt inside the block becomes `Stopped` if anything is stored."""

    def __init__(self, file: Path | None, about: Mapping[str, Any]):
        self.file, self.about = file, {"code": "", "seed": 0, **about}
        self.records, self._shard = Records(Path()), None
        if file is not None:
            whole_lines(file)  # removes a line that a kill has cut, so that the next record starts a new line
            self.records = read_log(file, run_name(self.about))
            header = environment(workers=1, part=(1, 1), prompts={}, judges={})
            self._shard = Shard(file.parent, self.about, header, file)
            self._shard.begun = bool(self.records.headers)

    def once(self, part: dict[str, Any], make: Callable[[], Any], on_kept: Callable[[], None] = lambda: None) -> Any:
        """Return the stored value of a part, or call `make` and store its result; both are plain JSON. `on_kept` is
        called where the value was stored already."""
        name = part_name(part)
        if name in self.records.parts:
            on_kept()
            return self.records.parts[name]
        value = self.records.parts[name] = make()
        self._add({"kind": "part", "part": part, "value": value})
        return value

    def samples(self, group: CellGroup) -> GroupSamples:
        return GroupSamples(self, {method.key: group.fields(method) for method in group.methods})

    def sample(self, request: Mapping[str, Any], attempt: Attempt | None = None) -> Attempt | None:
        """Store a sample, or look it up without an attempt, None if there is none. `request` holds the fields of the
        cell and of the request."""
        if attempt is not None:
            record = sample_record(request, attempt, compared=True)
            self.records.samples[record["key"]] = record
            self._add(record)
        record = self.records.samples.get(record_key(request))
        return None if record is None else compared_run(record)

    def _add(self, record: dict[str, Any]) -> None:
        if self._shard is not None:
            self._shard.add([record])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        parts, samples = len(self.records.parts), len(self.records.samples)
        if isinstance(error, KeyboardInterrupt) and self.file is not None and parts + samples:
            finished = f"parts: {parts}" if parts else f"requests: {samples}"
            raise Stopped(f"the finished work of the bench ({finished}) is kept in {self.file}") from error


class GroupSamples:
    """The stored samples of one setting of a bench, for `interleave`. `cells` has the record fields of every method's
    cell, by the method's key."""

    def __init__(self, log: BenchLog, cells: Mapping[str, Mapping[str, Any]]):
        self.log, self.cells = log, cells

    def find(self, name: str, case: int, repeat: int) -> Attempt | None:
        return self.log.sample(self._request(name, case, repeat))

    def add(self, name: str, case: int, repeat: int, seed: int, attempt: Attempt) -> Attempt:
        return self.log.sample(self._request(name, case, repeat, seed), attempt)

    def _request(self, name: str, case: int, repeat: int, seed: int = 0) -> dict[str, Any]:
        prompt = EvaluationPrompt(f"case {case}", ("",))
        return {**self.cells[name], **request_fields(prompt, "", case, repeat, seed)}

"""Finished parts of a bench as they come, one JSON object a line, so that a stopped bench goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from mmspec.io.files import append_lines, whole_lines
from mmspec.io.interrupts import Stopped


def log_beside(file: Path | None) -> Path | None:
    """Where the log of a bench lies whose figures go to `file`; nowhere without a file."""
    return None if file is None else file.with_name(f"{file.name}.part.jsonl")


class BenchLog:
    """The parts in `file` that this bench has finished, and new ones behind them; without a file nothing is kept.

    A part is what is measured together and means nothing in halves, such as the methods that were timed in turn.
    about: all that decides the figures: the bench and its settings, code, machine. A line holds it once, and every part
    names its run by its hash, and its code: parts of another bench, of other code or another machine are never taken for
    this one's.
    An interrupt inside the block becomes `Stopped` once something is kept.
    Raises ValueError for a file with other contents.
    """

    def __init__(self, file: Path | None, about: dict[str, Any]):
        self.file, self.about = file, about
        text = json.dumps(about, sort_keys=True, default=str)
        self.run = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._parts: dict[str, Any] = {}
        self._begun = False
        for number, line in enumerate(whole_lines(file) if file is not None else (), 1):
            self._take(number, line)

    def once(self, part: dict[str, Any], make: Callable[[], Any], on_kept: Callable[[], None] = lambda: None) -> Any:
        """What is kept of `part`, or what `make` returns, which is kept from then on; values are plain JSON.

        on_kept: called where `make` was not.
        """
        name = _name(part)
        if name in self._parts:
            on_kept()
            return self._parts[name]
        value = self._parts[name] = make()
        if self.file is not None:
            begin = () if self._begun else ({"run": self.run, "about": self.about},)
            lines = (*begin, {"run": self.run, "code": self.about.get("code"), "part": part, "value": value})
            append_lines(
                self.file, [json.dumps(line, ensure_ascii=False, allow_nan=False, default=str) for line in lines]
            )
            self._begun = True
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt) and self.file is not None and self._parts:
            raise Stopped(
                f"what is finished of the bench (parts: {len(self._parts)}) is kept in {self.file}"
            ) from error

    def _take(self, number: int, line: str) -> None:
        try:
            record = json.loads(line)
            run, part = record["run"], record.get("part")
            value = None if part is None else record["value"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.file}, line {number}: expected a finished part of a bench, got {line[:60]!r}, move "
                             "the file away") from error  # fmt: skip
        if run == self.run:
            self._begun = True
            if part is not None:
                self._parts[_name(part)] = value


def _name(part: dict[str, Any]) -> str:
    return json.dumps(part, sort_keys=True, default=str)

"""The log of a training run."""

from __future__ import annotations

import json
from pathlib import Path

from mmspec.core.files import append_lines, write_text_atomic
from mmspec.core.readers import read_json_lines

_OPEN = "open"  # figures of steps that stand in no mean yet


class TrainingLog:
    """Means of the steps as JSON lines; every line holds its step and the seconds of training so far.

    A resumed run drops what a killed one wrote behind its last checkpoint, and goes on with the means begun there: its
    lines are those of a run that nothing interrupted.
    """

    def __init__(self, file: Path):
        self.file, self.seconds = file, 0.0
        self.lines: list[dict] = []
        self.window: list[dict[str, float]] = []
        file.parent.mkdir(parents=True, exist_ok=True)

    def add(self, step: int, notes: dict[str, float], every: int, last: bool) -> None:
        """Takes one step's figures; their means are written every `every` steps, and after the last one."""
        self.window.append(notes)
        if step % every == 0 or last:
            names = dict.fromkeys(name for line in self.window for name in line)
            seen = {name: [line[name] for line in self.window if name in line] for name in names}
            self.note(step, {name: sum(values) / len(values) for name, values in seen.items()})
            self.window = []

    def note(self, step: int, figures: dict[str, float]) -> None:
        """Writes one line."""
        self._write(step, {name: round(value, 5) for name, value in figures.items()})

    def mark(self, step: int) -> None:
        """Writes what a run that goes on behind this step needs; called where a checkpoint is written."""
        self._write(step, {_OPEN: self.window} if self.window else {})

    def cut(self, step: int) -> None:
        """Keeps the lines up to `step`, and takes up what was marked there.

        Raises ValueError for a line that is none of a log's.
        """
        lines = read_json_lines(self.file, torn=True) if step and self.file.exists() else []
        for number, line in enumerate(lines, 1):
            figures = (line.get("step"), line.get("seconds", 0.0))
            if not all(isinstance(value, int | float) for value in figures) or not isinstance(
                line.get(_OPEN, []), list
            ):
                raise ValueError(f"{self.file}, line {number}: expected a step and its seconds, got {line}; start over")
        self.lines = [line for line in lines if line["step"] <= step]
        write_text_atomic(self.file, "".join(json.dumps(line) + "\n" for line in self.lines))
        self.seconds = max((line.get("seconds", 0.0) for line in self.lines), default=0.0)
        marked = [line[_OPEN] for line in self.lines if line["step"] == step and _OPEN in line]
        self.window = marked[-1] if marked else []

    def last(self) -> dict[str, float]:
        """The last value of every figure."""
        found: dict[str, float] = {}
        for line in self.lines:
            found.update(line)
        found.pop(_OPEN, None)
        return found

    def _write(self, step: int, more: dict) -> None:
        record = {"step": step, "seconds": round(self.seconds, 1), **more}
        self.lines.append(record)
        append_lines(self.file, [json.dumps(record)])

"""The log of a training run."""

from __future__ import annotations

import json
from pathlib import Path


class TrainingLog:
    """Means of the steps as JSON lines; every line holds its step and the seconds of training so far.

    A resumed run drops what a killed one wrote behind its last checkpoint.
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
        record = {"step": step, "seconds": round(self.seconds, 1), **{k: round(v, 5) for k, v in figures.items()}}
        self.lines.append(record)
        with self.file.open("a") as out:
            out.write(json.dumps(record) + "\n")

    def cut(self, step: int) -> None:
        """Keeps the lines up to `step`."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.lines = [record for record in map(json.loads, lines) if record["step"] <= step] if step else []
        self.file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        self.seconds = max((line["seconds"] for line in self.lines), default=0.0)

    def last(self) -> dict[str, float]:
        """The last value of every figure."""
        found: dict[str, float] = {}
        for line in self.lines:
            found.update(line)
        return found

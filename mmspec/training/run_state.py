"""Files of a resumable training run: its log, and its state at every checkpoint."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import nn

from mmspec.io.files import append_lines, write_text_atomic
from mmspec.io.interrupts import Stopped
from mmspec.io.readers import read_json_lines
from mmspec.training.checkpoint import load_state, save_state

_OPEN = "open"  # figures of steps that no written mean includes yet


class TrainingLog:
    """A log of mean figures as JSON lines, each with its step and the seconds of training so far. A resumed run removes
    the lines after its last checkpoint and restores the unfinished mean, so that its lines equal an unstopped run's."""

    def __init__(self, file: Path):
        self.file, self.seconds = file, 0.0
        self.lines: list[dict] = []
        self.window: list[dict[str, float]] = []
        file.parent.mkdir(parents=True, exist_ok=True)

    def add(self, step: int, notes: dict[str, float], every: int, last: bool) -> None:
        """Add the figures of a step, from 1, and write the means every `every` steps and after the last step."""
        self.window.append(notes)
        if step % every == 0 or last:
            names = dict.fromkeys(name for line in self.window for name in line)
            seen = {name: [line[name] for line in self.window if name in line] for name in names}
            self.note(step, {name: sum(values) / len(values) for name, values in seen.items()})
            self.window = []

    def note(self, step: int, figures: dict[str, float]) -> None:
        self._write(step, {name: round(value, 5) for name, value in figures.items()})

    def mark(self, step: int) -> None:
        """Write the figures that no mean includes yet, at every checkpoint, for a run that resumes after this step."""
        self._write(step, {_OPEN: self.window} if self.window else {})

    def cut(self, step: int) -> None:
        """Remove the lines after `step`, and restore the figures that `mark` wrote there."""
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
        """Return the last value of every figure."""
        figures: dict[str, float] = {}
        for line in self.lines:
            figures.update(line)
        figures.pop(_OPEN, None)
        return figures

    def _write(self, step: int, more: dict) -> None:
        record = {"step": step, "seconds": round(self.seconds, 1), **more}
        self.lines.append(record)
        append_lines(self.file, [json.dumps(record)])


STATE, LOG = "state.safetensors", "log.jsonl"


class RunState:
    """The state of a run in `folder/state.safetensors`, saved every `every_s` seconds, and its log in
    `folder/log.jsonl`. Of several processes that train together, one writes and all read."""

    def __init__(self, folder: Path, module: nn.Module, every_s: float, writes: bool = True):
        self.state, self.log = folder / STATE, TrainingLog(folder / LOG)
        self.module, self.every_s, self.writes = module, every_s, writes
        self._saved = time.monotonic()

    def begin(self, optimizer: torch.optim.Optimizer, resume: bool) -> int:
        """Load the state of an earlier run and return the step to continue from. Or write the untrained state of a new
        run, in place of an earlier state, and return 0: this early write reports a full disk before the training."""
        first = load_state(self.state, self.module, optimizer) if resume and self.state.exists() else 0
        if self.writes:
            self.log.cut(first)
        if not first:
            self.save(optimizer, 0)
        return first

    def save(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        if self.writes:
            self.log.mark(step)
            save_state(self.state, self.module, optimizer, step)
        self._saved = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._saved > self.every_s

    def stopped(self, step: int, steps: int, number: int) -> Stopped:
        """Return the exception to raise after a saved step of `steps` that a signal, `number`, interrupted."""
        return Stopped(f"step {step} of {steps} is kept in {self.state}", number)

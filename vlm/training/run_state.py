"""The state of a training run on disk: when it is written so that the run can resume, and what is said where it stops."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from mmspec.core.interrupts import Stopped
from mmspec.vlm.training.checkpoint import load_state, save_state
from mmspec.vlm.training.log import TrainingLog

STATE, LOG = "state.safetensors", "log.jsonl"


class RunState:
    """The state of a run in `folder/state.safetensors` and its log in `folder/log.jsonl`.

    module: what is trained, as it is saved.   every_s: seconds between saves.   writes: of several processes that train
    together one writes, all read.
    """

    def __init__(self, folder: Path, module: nn.Module, every_s: float, writes: bool = True):
        self.state, self.log = folder / STATE, TrainingLog(folder / LOG)
        self.module, self.every_s, self.writes = module, every_s, writes
        self._saved = time.monotonic()

    def begin(self, optimizer: torch.optim.Optimizer, resume: bool) -> int:
        """The step to go on from; 0 for a new run, whose untrained state is written now.

        So a full disk is met before the work, and a run that starts over leaves no state of an older one behind.
        """
        first = load_state(self.state, self.module, optimizer) if resume and self.state.exists() else 0
        if self.writes:
            self.log.cut(first)
        if not first:
            self.save(optimizer, 0)
        return first

    def save(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Writes the state behind a step; `begin` with the same log goes on as if nothing had been between."""
        if self.writes:
            self.log.mark(step)
            save_state(self.state, self.module, optimizer, step)
        self._saved = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last save is long enough ago."""
        return time.monotonic() - self._saved > self.every_s

    def stopped(self, step: int, steps: int, number: int) -> Stopped:
        """What to raise behind a saved step where the signal `number` came."""
        return Stopped(f"step {step} of {steps} is kept in {self.state}", number)

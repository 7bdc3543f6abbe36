"""A small resumable training loop: AdamW or Muon, warm-up and cosine, safetensors checkpoints, progress bar, jsonl log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.core.files import locked
from mmspec.core.interrupts import stop_requests
from mmspec.vlm.training.run_state import STATE, RunState
from mmspec.vlm.training.schedule import Schedule

from .bars import bars, note_of

LossFn = Callable[[int], tuple[Tensor, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps and optimizer settings of one training run."""

    steps: int
    lr: float
    warmup: int = 100
    final_lr: float = 0.02  # share of `lr` left at the last step
    weight_decay: float = 0.05
    clip: float = 1.0
    save_every_s: float = 180.0
    log_every: int = 20
    again: int = 0  # as in `Schedule`
    muon: float = 0.0  # as in `Schedule`

    def __post_init__(self) -> None:
        self.schedule()

    def schedule(self) -> Schedule:
        """Optimizer, warm-up and cosine as drafters are trained.   Raises ValueError for settings out of range."""
        return Schedule(
            self.steps, self.lr, self.warmup, final_lr=self.final_lr, weight_decay=self.weight_decay, clip=self.clip,
            again=self.again, muon=self.muon,
        )  # fmt: skip


def train(
    module: nn.Module,
    loss_of: LossFn,
    plan: Plan,
    folder: Path,
    title: str,
    resume: bool = True,
    on_save: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Minimise `loss_of(step)` over the trainable parameters of `module`; returns the means of the last logged steps.

    `loss_of` must be a pure function of the step and the parameters, so that a resumed run continues exactly.
    The state lies in `folder/state.safetensors`, the log in `folder/log.jsonl`; `on_save` is told the steps they stand at.
    Raises ValueError where another process trains in `folder`, and Stopped where SIGINT or SIGTERM came, once the running
    step is done and its state written.
    """
    schedule = plan.schedule()
    optimizer = schedule.optimizer(module)
    with locked(folder), bars() as progress, stop_requests() as request:
        run_state = RunState(folder, module, plan.save_every_s)
        first = run_state.begin(optimizer, resume)
        bar = progress.add_task(title, total=plan.steps, completed=first, note="")
        for step in range(first, plan.steps):
            began = time.monotonic()
            notes = _update(module, optimizer, loss_of, schedule, step)
            run_state.log.seconds += time.monotonic() - began
            done = step + 1 == plan.steps
            run_state.log.add(step + 1, notes, plan.log_every, last=done)
            progress.update(bar, advance=1, note=note_of(notes))
            if done or request.signal or run_state.due:
                run_state.save(optimizer, step + 1)
                if on_save is not None:
                    on_save(step + 1)
            if request.signal and not done:
                raise run_state.stopped(step + 1, plan.steps, request.signal)
    return {key: value for key, value in run_state.log.last().items() if key not in ("step", "seconds")}


def start_over(*folders: Path) -> None:
    """Removes the states in these folders: a build of several stages that is stopped in the first must not go on with what
    an older build left for the others."""
    for folder in folders:
        with locked(folder):
            (folder / STATE).unlink(missing_ok=True)


def _update(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss_of: LossFn, schedule: Schedule, step: int
) -> dict[str, float]:
    for group in optimizer.param_groups:
        group["lr"] = schedule.lr_at(step)
    loss, notes = loss_of(step)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    schedule.clip_gradients(module)
    optimizer.step()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ValueError(f"expected a finite loss, got {value} at step {step}, lower the learning rate and resume")
    return {"loss": value, **notes}

"""A small resumable training loop: AdamW, warm-up and cosine, safetensors checkpoints, progress bar, jsonl log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from mmspec.vlm.training.checkpoint import load_state, save_state
from mmspec.vlm.training.schedule import Schedule

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

    def __post_init__(self) -> None:
        self.schedule()

    def schedule(self) -> Schedule:
        """AdamW, warm-up and cosine as drafters are trained.   Raises ValueError for settings out of range."""
        return Schedule(
            self.steps, self.lr, self.warmup, final_lr=self.final_lr, weight_decay=self.weight_decay, clip=self.clip
        )


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
    The state lies in `folder/state.safetensors`, the log in `folder/log.jsonl`.
    """
    schedule = plan.schedule()
    optimizer = schedule.optimizer(module)
    state = folder / "state.safetensors"
    first = load_state(state, module, optimizer) if resume and state.exists() else 0
    folder.mkdir(parents=True, exist_ok=True)
    means: dict[str, float] = {}
    saved = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as progress, (folder / "log.jsonl").open("a") as log:
        bar = progress.add_task(title, total=plan.steps, completed=first, note="")
        window: list[dict[str, float]] = []
        began = time.monotonic()
        for step in range(first, plan.steps):
            window.append(_update(module, optimizer, loss_of, schedule, step))
            progress.update(bar, advance=1)
            if (step + 1) % plan.log_every == 0 or step + 1 == plan.steps:
                means = {key: sum(row[key] for row in window) / len(window) for key in window[0]}
                pace = (time.monotonic() - began) / len(window)
                log.write(json.dumps({"step": step + 1, "seconds_per_step": round(pace, 4), **_rounded(means)}) + "\n")
                log.flush()
                progress.update(bar, note=" ".join(f"{key} {value:.3f}" for key, value in means.items()))
                window, began = [], time.monotonic()
            if time.monotonic() - saved > plan.save_every_s or step + 1 == plan.steps:
                save_state(state, module, optimizer, step + 1)
                if on_save is not None:
                    on_save(step + 1)
                saved = time.monotonic()
    return means or _last_logged(folder)


def _last_logged(folder: Path) -> dict[str, float]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    row = json.loads(lines[-1]) if lines else {}
    return {key: value for key, value in row.items() if key not in ("step", "seconds_per_step")}


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


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 5) for key, value in values.items()}

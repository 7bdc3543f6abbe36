"""Training of a drafter for a target with accelerate: resumable, with measurements of acceptance during training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.core.round.loop import Drafter
from mmspec.training.loop import train_steps
from mmspec.training.run_state import RunState
from mmspec.training.schedule import Schedule
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import Parts
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.training.examples import Example, encode
from mmspec.vlm.training.objective import Objective, check_reach
from mmspec.vlm.training.teacher import VlmTeacherBatch, to_device

TeacherBatches = Callable[[int], VlmTeacherBatch]


@dataclass(frozen=True, slots=True)
class TrainSettings:
    schedule: Schedule
    objective: Objective
    precision: str = "bf16"  # "bf16" trains in autocast, "no" in float32
    noise: float = 0.0  # width of uniform noise on the states (0.2 in EAGLE's code, see `with_noise`), 0 for none
    eval_every: int = 0  # steps between measurements of acceptance, 0 for none
    eval_tokens: int = 64  # generated for each prompt of a measurement
    eval_length: int = 7  # draft tokens in a measurement
    save_every_s: float = 180.0  # seconds between saves of the state
    log_every: int = 20  # steps between log lines
    seed: int = 0  # of all random numbers in a step

    def __post_init__(self) -> None:
        if self.precision not in ("bf16", "no"):
            raise ValueError(f"precision: expected 'bf16' or 'no', got {self.precision!r}")
        if min(self.noise, self.eval_every) < 0 or min(self.eval_tokens, self.eval_length, self.log_every) < 1:
            raise ValueError(f"expected noise and eval_every of at least 0 and positive counts, got {self}")


class _Student(nn.Module):
    """The drafter and its objective in a single forward, as distributed wrappers need it."""

    def __init__(self, drafter: nn.Module, objective: Objective, parts: Parts):
        super().__init__()
        self.drafter, self.objective = drafter, objective
        self._parts = (parts,)  # in a tuple, because the target is neither trained nor saved

    def forward(self, batch: VlmTeacherBatch, progress: float) -> tuple[Tensor, dict[str, float]]:
        loss, figures = self.objective(self.drafter, self._parts[0], batch, progress)
        if not loss.requires_grad and torch.distributed.is_available() and torch.distributed.is_initialized():
            # no row has a place to learn from, but the other processes wait for gradients
            loss = loss + sum(0.0 * parameter.sum() for parameter in self.drafter.parameters())
        return loss, figures


def train_drafter(
    drafter: ShapedDrafter,
    model: nn.Module,
    processor: Any,
    teacher_batches: TeacherBatches,
    folder: Path,
    settings: TrainSettings,
    *,
    held_out: Sequence[Example] = (),
    resume: bool = True,
    on_step: Callable[[int, dict[str, float]], None] = lambda step, notes: None,
) -> dict[str, float]:
    """Minimise the objective over `teacher_batches(step)`, a deterministic function so that a run can be resumed. The
    drafter is trained in place.

    The state is saved in `folder/state.safetensors`, the log in `folder/log.jsonl` (loss, and accept_length when
    measured on `held_out`). Under `accelerate launch`, every process uses the teacher batches of its own steps and the
    gradients are averaged. If all rows have equally many places, this equals a single process with all rows. SIGINT or
    SIGTERM to any process stops after the running step. `on_step` gets the step (from 1) and its figures. Return the
    last logged means."""
    check_reach(settings.objective, drafter)
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs
    except ImportError as error:
        raise ValueError('training: expected accelerate, found none; pip install "mmspec[train]"') from error

    accelerator = Accelerator(
        mixed_precision="no",  # accelerate fixes the first run's choice for the process, so autocast is used directly
        cpu=model.device.type == "cpu",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    parts, schedule = take_apart(model), settings.schedule
    drafter.check(parts)
    student = _Student(drafter.to(accelerator.device).train().requires_grad_(True), settings.objective, parts)
    optimizer = schedule.optimizer(student)
    state = RunState(folder, drafter, settings.save_every_s, writes=accelerator.is_main_process)
    first = state.begin(optimizer, resume)
    student, optimizer = accelerator.prepare(student, optimizer)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = teacher_batches(step * accelerator.num_processes + accelerator.process_index)
        torch.manual_seed(settings.seed * 1_000_003 + step)  # random numbers of a step depend on the step alone
        batch = to_device(batch, accelerator.device)
        if settings.noise:
            batch = batch.with_noise(settings.noise)
        with torch.autocast(accelerator.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            return student(batch, step / schedule.steps)

    def measure(step: int) -> dict[str, float]:
        if not settings.eval_every or not held_out or step < schedule.steps and step % settings.eval_every:
            return {}
        return {"accept_length": accept_length(drafter, model, processor, held_out, settings)}

    figures = train_steps(
        student,
        loss_of,
        schedule,
        optimizer,
        state,
        first,
        log_every=settings.log_every,
        backward=accelerator.backward,
        measure=measure,
        shared_signal=lambda signal: _shared_signal(accelerator, signal),
        on_step=on_step,
    )
    drafter.eval().requires_grad_(False)
    return figures


def _shared_signal(accelerator: Any, signal: int) -> int:
    """Return the signal that any of the processes received, 0 for none, so that all end after the same step."""
    if accelerator.num_processes == 1:
        return signal
    return int(accelerator.gather(torch.tensor([signal], device=accelerator.device)).max())


@torch.no_grad()
def accept_length(
    drafter: ShapedDrafter, model: nn.Module, processor: Any, prompts: Sequence[Example], settings: TrainSettings
) -> float:
    """Return the tokens per target pass over the prompts at temperature 0, with chain drafts."""
    # it is trained in float32, but drafts in the target's dtype
    chain = copy.deepcopy(drafter).to(model.dtype).eval().with_shape(Chain(FixedLength(settings.eval_length)))
    return mean_accept_length(chain, model, processor, prompts, settings.eval_tokens)


def mean_accept_length(
    drafter: Drafter, model: nn.Module, processor: Any, prompts: Sequence[Example], tokens: int
) -> float:
    """Return the mean of the prompts' tokens per target pass at temperature 0, at most `tokens` tokens each."""
    from mmspec.vlm.api import generate

    lengths = []
    for prompt in prompts:
        inputs = {name: value.to(model.device) for name, value in encode(processor, [prompt]).items()}
        out = generate(model, drafter=drafter, max_new_tokens=tokens, do_sample=False, return_dict=True, **inputs)
        lengths.append(out.stats.accept_length)
    return sum(lengths) / len(lengths)

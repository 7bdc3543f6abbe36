"""The training loop: update, log, save, and stop after a whole step on a signal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from mmspec.io.interrupts import stop_requests
from mmspec.training.run_state import RunState
from mmspec.training.schedule import Schedule

LossFn = Callable[[int], tuple[Tensor, dict[str, float]]]


def train_steps(
    module: nn.Module,
    loss_of: LossFn,
    schedule: Schedule,
    optimizer: torch.optim.Optimizer,
    run_state: RunState,
    first: int,
    *,
    log_every: int,
    backward: Callable[[Tensor], object] = Tensor.backward,
    measure: Callable[[int], Mapping[str, float]] = lambda step: {},
    shared_signal: Callable[[int], int] = lambda signal: signal,
    # after every step with its number, from 1
    on_step: Callable[[int, dict[str, float]], object] = lambda step, figures: None,
) -> dict[str, float]:
    """Minimise a loss over the steps from `first` to the end of the schedule; return the last value of every figure in
    the log. On SIGINT or SIGTERM the running step is finished, its state is saved, and `Stopped` is raised."""
    with stop_requests(loud=run_state.writes) as request:
        for step in range(first, schedule.steps):
            began = time.monotonic()
            figures = update(module, step, loss_of, schedule, optimizer, backward)
            run_state.log.seconds += time.monotonic() - began
            number, done = step + 1, step + 1 == schedule.steps
            if run_state.writes:
                run_state.log.add(number, figures, log_every, last=done)
                if measured := dict(measure(number)):
                    run_state.log.note(number, measured)
                    figures = {**figures, **measured}  # a new dict, since the log still holds the old dict
            signal = shared_signal(request.signal)
            if done or signal or run_state.due:
                run_state.save(optimizer, number)
            on_step(number, figures)
            if signal and not done:
                raise run_state.stopped(number, schedule.steps, signal)
    return run_state.log.last()


def update(
    module: nn.Module,
    step: int,
    loss_of: LossFn,
    schedule: Schedule,
    optimizer: torch.optim.Optimizer,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> dict[str, float]:
    """Update the parameters by one step; return its figures and its loss. A loss of Inf or NaN leaves them unchanged."""
    for group in optimizer.param_groups:
        group["lr"] = schedule.lr_at(step)
    loss, figures = loss_of(step)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise ValueError(
            f"loss: expected a finite number, got {value} at step {step}; lower the learning rate and resume"
        )
    optimizer.zero_grad(set_to_none=True)
    if loss.requires_grad:  # a batch without supervised positions has no gradients
        backward(loss)
        schedule.clip_gradients(module)
        optimizer.step()
    return {"loss": value, **figures}

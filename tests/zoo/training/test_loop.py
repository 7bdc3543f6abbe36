"""The training loop: resumed, stopped and refused runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from mmspec.io.files import locked
from mmspec.io.interrupts import Stopped
from mmspec.training.checkpoint import load_state
from mmspec.zoo.training.loop import TrainingPlan, train


def _problem():
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)

    def loss_of(step):
        drawn = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        return (layer(drawn) - drawn[:, :2]).square().mean(), {}

    return layer, loss_of


def test_resumed_training_equals_uninterrupted(tmp_path):
    plan = TrainingPlan(steps=12, lr=1e-2, warmup=3, log_every=4)
    whole, loss_of = _problem()
    train(whole, loss_of, plan, tmp_path / "whole", "t")

    cut, loss_of = _problem()
    with pytest.raises(KeyboardInterrupt):
        train(
            cut,
            _stop_at(loss_of, 7),
            TrainingPlan(steps=12, lr=1e-2, warmup=3, save_every_s=0.0),
            tmp_path / "cut",
            "t",
        )
    cut, loss_of = _problem()
    train(cut, loss_of, plan, tmp_path / "cut", "t")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def test_a_signal_keeps_the_step_and_the_resumed_run_ends_the_same(tmp_path):
    plan = TrainingPlan(steps=12, lr=1e-2, warmup=3, log_every=5)
    whole, loss_of = _problem()
    figures = train(whole, loss_of, plan, tmp_path / "whole", "t")
    cut, loss_of = _problem()
    with pytest.raises(Stopped, match="^step 8 of 12 is kept in .*state.safetensors$"):
        train(cut, _signal_at(loss_of, 7), plan, tmp_path / "cut", "t")
    resumed, loss_of = _problem()
    assert train(resumed, loss_of, plan, tmp_path / "cut", "t") == figures
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def _signal_at(loss_of, step):
    def signalling(number):
        if number == step:
            signal.raise_signal(signal.SIGTERM)
        return loss_of(number)

    return signalling


def test_a_run_that_starts_over_leaves_no_older_state(tmp_path):
    plan = TrainingPlan(steps=4, lr=1e-2, warmup=1)
    layer, loss_of = _problem()
    train(layer, loss_of, plan, tmp_path, "t")
    with pytest.raises(KeyboardInterrupt):
        train(_problem()[0], _stop_at(loss_of, 0), plan, tmp_path, "t", resume=False)
    again, _ = _problem()
    assert load_state(tmp_path / "state.safetensors", again) == 0


def test_two_runs_in_one_folder_are_refused(tmp_path):
    layer, loss_of = _problem()
    with locked(tmp_path), pytest.raises(ValueError, match="no other run is writing to"):
        train(layer, loss_of, TrainingPlan(steps=2, lr=1e-2), tmp_path, "t")


_COMMAND = """
import sys
from pathlib import Path
import torch, typer
from mmspec.cli.console import reports_errors
from mmspec.zoo.training.loop import TrainingPlan, train

layer, app = torch.nn.Linear(4, 2), typer.Typer()

def loss_of(step):
    print(step, flush=True)
    return layer(torch.ones(3, 4)).square().mean(), {}

@app.command()
@reports_errors
def build(folder: Path):
    train(layer, loss_of, TrainingPlan(steps=10**7, lr=1e-2), folder, "t")

app()
"""


@pytest.mark.whole
def test_a_stopped_training_command_reports_one_error(tmp_path):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-c", _COMMAND, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    layer, _ = _problem()
    kept = load_state(tmp_path / "state.safetensors", layer)
    first, last = said.splitlines()
    assert first == "Stopping after this step; a second signal stops at once."
    assert last == (
        f"Stopped: step {kept} of 10000000 is kept in {tmp_path}/state.safetensors; go on with: mmspec {tmp_path}"
    )


def _stop_at(loss_of, last):
    def stopping(step):
        if step == last:
            raise KeyboardInterrupt
        return loss_of(step)

    return stopping


def test_a_finished_run_returns_its_figures_again(tmp_path):
    plan = TrainingPlan(steps=4, lr=1e-2, warmup=1, log_every=2)
    layer, loss_of = _problem()
    first = train(layer, loss_of, plan, tmp_path, "t")
    again = train(layer, loss_of, plan, tmp_path, "t")
    assert again["loss"] == pytest.approx(first["loss"], abs=1e-4)


def test_a_loss_that_is_not_finite_stops(tmp_path):
    layer, loss_of = _problem()
    with pytest.raises(ValueError, match="loss: expected a finite number"):
        train(layer, lambda step: (loss_of(step)[0] * float("nan"), {}), TrainingPlan(steps=2, lr=1e-2), tmp_path, "t")

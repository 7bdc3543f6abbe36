"""Training: it learns, it measures, and a killed run resumed ends where an uninterrupted one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmspec.io.interrupts import Stopped
from mmspec.training.schedule import Schedule
from mmspec.vlm.admission import take_apart
from mmspec.vlm.training.losses import cross_entropy, smooth_l1
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from mmspec.vlm.training.trainer import TrainSettings, train_drafter
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny

OBJECTIVE = Objective(((1.0, cross_entropy), (0.2, smooth_l1)), depths=2)


def teacher_batches(step: int) -> VlmTeacherBatch:
    """A batch of the tiny model's own answers, a pure function of the step."""
    model = tiny("llava")
    inputs = prompt("llava", 1, batch=4, seed=step % 3)
    start = inputs["input_ids"].shape[1]
    ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, ids.shape[1] - start), value=1)
    answer = torch.arange(ids.shape[1]).expand_as(ids) >= start
    return teacher_pass(take_apart(model), dict(inputs, input_ids=ids, attention_mask=mask), answer)


def settings(steps: int, **changes: object) -> TrainSettings:
    return TrainSettings(
        Schedule(steps, 3e-3, warmup=2), OBJECTIVE, precision="no", save_every_s=0.0, log_every=2, **changes
    )


def run(folder: Path, steps: int = 8, resume: bool = True, on_step: object = lambda step, notes: None) -> dict:
    return train_drafter(
        make("msd"), tiny("llava"), None, teacher_batches, folder, settings(steps), resume=resume, on_step=on_step
    )


def test_the_loss_decreases_and_is_logged(tmp_path: Path) -> None:
    last = run(tmp_path, steps=24)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.7 * losses[0] and last["loss"] == losses[-1]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    assert lines[-1]["seconds"] > 0


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.vlm.training.test_trainer import run
run(Path(sys.argv[1]), on_step=lambda step, notes: os.kill(os.getpid(), signal.SIGKILL) if step == 5 else None)
"""


@pytest.mark.whole
def test_a_killed_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "killed")], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = run(tmp_path / "killed")
    assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line][-1] == 8


def raising(number: int, at: int) -> object:
    """Teacher batches during one of which a signal comes."""

    def teacher_batches_of(step: int) -> VlmTeacherBatch:
        if step == at:
            signal.raise_signal(number)
        return teacher_batches(step)

    return teacher_batches_of


def lines_of(folder: Path) -> list[dict]:
    """What the log says of losses, times left out."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines if "loss" in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_its_last_step_and_resumes_to_the_same_end(number: int, tmp_path: Path) -> None:
    how = replace(settings(8), save_every_s=3600.0, log_every=5)
    runs = {name: (make("msd"), tiny("llava"), None) for name in ("whole", "cut", "resumed")}
    whole = train_drafter(*runs["whole"], teacher_batches, tmp_path / "whole", how)
    with pytest.raises(Stopped, match=r"^step 3 of 8 is kept in .*state\.safetensors$") as stop:
        train_drafter(*runs["cut"], raising(number, at=2), tmp_path / "cut", how)
    assert stop.value.signal == number
    assert train_drafter(*runs["resumed"], teacher_batches, tmp_path / "cut", how)["loss"] == whole["loss"]
    assert lines_of(tmp_path / "cut") == lines_of(tmp_path / "whole")
    pairs = zip(runs["whole"][0].parameters(), runs["resumed"][0].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_signal_in_the_last_step_changes_nothing(tmp_path: Path) -> None:
    last = train_drafter(make("msd"), tiny("llava"), None, raising(signal.SIGINT, at=1), tmp_path, settings(2))
    assert last["step"] == 2


def test_a_run_that_starts_over_leaves_no_older_state(tmp_path: Path) -> None:
    run(tmp_path, steps=4)

    def killed(step: int) -> VlmTeacherBatch:
        raise MemoryError

    with pytest.raises(MemoryError):
        train_drafter(make("msd"), tiny("llava"), None, killed, tmp_path, settings(4), resume=False)
    seen: list[int] = []
    run(tmp_path, steps=4, on_step=lambda step, notes: seen.append(step))
    assert seen == [1, 2, 3, 4]


def test_a_run_restarts_without_resume(tmp_path: Path) -> None:
    seen: list[int] = []
    run(tmp_path, steps=4)
    run(tmp_path, steps=4, resume=False, on_step=lambda step, notes: seen.append(step))
    assert seen == [1, 2, 3, 4]


def test_acceptance_is_measured_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(processor: object, examples: list) -> dict[str, Tensor]:
        return prompt("llava", 1, seed=examples[0])

    monkeypatch.setattr("mmspec.vlm.training.trainer.encode", encode)
    seen = {}
    train_drafter(
        make("msd"),
        tiny("llava"),
        None,
        teacher_batches,
        tmp_path,
        settings(4, eval_every=2, eval_tokens=8),
        held_out=[1, 2],
        on_step=lambda step, notes: seen.update({step: notes.get("accept_length")}),
    )
    assert seen[1] is None and seen[3] is None and min(seen[2], seen[4]) >= 1
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "accept_length" in line] == [2, 4]


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    def broken(step: int) -> VlmTeacherBatch:
        teacher_batch = teacher_batches(step)
        teacher_batch.last = teacher_batch.last * torch.nan
        return teacher_batch

    with pytest.raises(ValueError, match="loss: expected a finite number, got nan at step 0"):
        train_drafter(make("msd"), tiny("llava"), None, broken, tmp_path, settings(2))

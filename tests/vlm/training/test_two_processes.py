"""Two processes that train together take the steps of one process with the same rows in a batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmspec.training.schedule import Schedule
from mmspec.vlm.admission import take_apart
from mmspec.vlm.training.losses import cross_entropy, smooth_l1
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from mmspec.vlm.training.trainer import TrainSettings, train_drafter
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny

ROOT = Path(__file__).parents[3]
ROWS, STEPS = 4, 6
pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="gloo is not built in"
    ),
]


def batch_of(number: int, parts: int, idle: int) -> VlmTeacherBatch:
    """Part `number % parts` of the rows of step `number // parts`; a part that is idle has no answer to learn from."""
    step, part = divmod(number, parts)
    model, inputs = tiny("llama"), prompt("llama", batch=ROWS, seed=step % 3)
    start = inputs["input_ids"].shape[1]
    ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, ids.shape[1] - start), value=1)
    answer = torch.arange(ids.shape[1]).expand_as(ids) >= start
    rows = slice(part * ROWS // parts, (part + 1) * ROWS // parts)
    answer = answer[rows] & (part != idle)
    return teacher_pass(take_apart(model), dict(input_ids=ids[rows], attention_mask=mask[rows]), answer)


def run(folder: Path, parts: int, idle: int = -1) -> dict[str, float]:
    objective = Objective(((1.0, cross_entropy), (0.2, smooth_l1)), depths=2)
    settings = TrainSettings(Schedule(STEPS, 3e-3, warmup=2), objective, precision="no", save_every_s=0.0, log_every=1)
    return train_drafter(
        make("msd"), tiny("llama"), None, lambda number: batch_of(number, parts, idle), folder, settings
    )


def launched(folder: Path, processes: int, idle: int = -1) -> dict[str, torch.Tensor]:
    """The weights after a run by processes of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    script = [str(Path(__file__).with_name("shared_run.py")), str(folder), str(idle)]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="1")
    done = subprocess.run([*command, *script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(folder / "state.safetensors")


def test_the_weights_match_a_single_process_with_the_same_rows(tmp_path: Path) -> None:
    together, alone = launched(tmp_path / "two", 2), launched(tmp_path / "one", 1)
    assert together.keys() == alone.keys()
    for name, weight in alone.items():
        assert torch.allclose(together[name].float(), weight.float(), atol=2e-5), name
    before = make("msd").fc.weight
    assert float((alone["model.fc.weight"] - before).abs().max()) > 1e-3, "the run trained something"


def test_a_process_without_anything_to_learn_takes_part(tmp_path: Path) -> None:
    """A gradient of zeros from a process whose rows have no answer; without it the others would wait for ever."""
    assert launched(tmp_path, 2, idle=1)

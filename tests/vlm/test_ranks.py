"""Two processes that share a model's layers decode as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.vlm.layer_kinds import model_with

ROOT = Path(__file__).parents[2]


@pytest.mark.whole
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch is built without distributed processes")
@pytest.mark.skipif(
    torch.distributed.is_available() and not torch.distributed.is_gloo_available(), reason="gloo is not built in"
)
def test_two_processes_with_a_plan_give_its_own_words(tmp_path: Path) -> None:
    model_with("LlamaForCausalLM").save_pretrained(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.vlm.sharing"]
    found = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert found.returncode == 0, found.stderr[-4000:]
    assert "rank 0 of 2: the same" in found.stdout and "rank 1 of 2: the same" in found.stdout

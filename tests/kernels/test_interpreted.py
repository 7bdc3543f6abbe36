"""Every kernel under Triton's interpreter and on a GPU, in processes of their own: no other test may see them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from tests.house.tree import ROOT

pytest.importorskip("triton", reason="no Triton for this platform: the references run, and there is no kernel to test")
ROOM = ROOT / "tests" / "kernels" / "interpreted"


def test_kernels_equal_their_references() -> None:
    assert fenced_launches(_run_room("not whole", TRITON_INTERPRET="1")) > 20  # a tree and a chain


@pytest.mark.whole
def test_all_kernels_equal_their_references_behind_the_fence() -> None:
    assert fenced_launches(_run_room("whole or not whole", TRITON_INTERPRET="1", MMSPEC_FENCE="1")) > 500


def fenced_launches(report: str) -> int:
    return int(re.search(r"^fence: (\d+) launches", report, re.MULTILINE)[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_kernels_equal_their_references_on_a_gpu() -> None:
    _run_room("whole or not whole", MMSPEC_KERNELS="cuda")


def _run_room(lane: str, **variables: str) -> str:
    interpreted = "TRITON_INTERPRET" in variables
    files = sorted(str(file) for file in ROOM.glob("test_*.py") if interpreted or file.name != "test_fence.py")
    words = ("-q", "-m", lane, "-p", "no:cacheprovider", "-p", "no:xdist", *files)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout
    return done.stdout


def test_this_process_runs_the_references() -> None:
    from mmspec.kernels.dispatch import INTERPRETED

    assert not INTERPRETED

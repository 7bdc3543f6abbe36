"""Every kernel under Triton's interpreter and on a GPU, in processes of their own: no other test may see them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests.house.tree import ROOT

pytest.importorskip("triton", reason="no Triton for this platform: the references run, and there is no kernel to test")
ROOM = ROOT / "tests" / "kernels" / "interpreted"


@pytest.mark.parametrize(
    "lane",
    (
        pytest.param("not whole", id="narrow"),
        pytest.param("whole", id="wide and many", marks=pytest.mark.whole),
    ),
)
def test_kernels_equal_their_references(lane: str) -> None:
    _run_room(lane, TRITON_INTERPRET="1")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_kernels_equal_their_references_on_a_gpu() -> None:
    _run_room("whole or not whole", MMSPEC_KERNELS="cuda")


def _run_room(lane: str, **variables: str) -> None:
    files = sorted(map(str, ROOM.glob("test_*.py")))
    words = ("-q", "-m", lane, "-p", "no:cacheprovider", "-p", "no:xdist", *files)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout


def test_this_process_runs_the_references() -> None:
    from mmspec.kernels.dispatch import INTERPRETED

    assert not INTERPRETED

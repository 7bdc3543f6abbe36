"""Every kernel under Triton's interpreter, in a process of their own: no other test of this one may see it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
    files = sorted(map(str, ROOM.glob("test_*.py")))
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    words = ("-q", "-m", lane, "-p", "no:cacheprovider", "-p", "no:xdist", *files)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout


def test_this_process_runs_the_references() -> None:
    from mmspec.kernels.dispatch import INTERPRETED

    assert not INTERPRETED

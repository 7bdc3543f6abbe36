"""Every kernel compiles to machine code of a GPU, with none at hand: what the interpreter lets pass shows here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

pytest.importorskip(
    "triton", reason="no Triton for this platform: the references run, and there is no kernel to compile"
)


@pytest.mark.whole
def test_every_kernel_compiles_and_is_reached_by_a_wrapper(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-W", "ignore", "-m", "tests.kernels.compiling", "90"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-6000:]
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kernels" / "ops" / "gpu").glob("*.py"))
    assert done.stdout.split() == sorted(re.findall(r"def (\w+_kernel)\(", sources))

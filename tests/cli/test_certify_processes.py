"""`mmspec certify` ends a step together with the processes that the step has started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmspec.certify.step import StepFailed
from mmspec.certify.subprocess_run import certify_in_subprocess, child_command

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups and named pipes are POSIX")

# the process that is started holds the named pipe `alive` open as long as it lives
STEPS = """
import os, subprocess, sys, time
import torch

CODE = "import sys, time; sys.stdout.write('x'); sys.stdout.flush(); time.sleep(600)"

def start():
    with open("alive", "w") as pipe:
        return subprocess.Popen([sys.executable, "-c", CODE], stdout=pipe)

def hangs(tokens):
    start().wait()

def crashes(tokens):
    start()
    time.sleep(0.5)
    os._exit(7)

def ends(tokens, p, uniforms, started=[]):
    if not started:
        started.append(start())
        time.sleep(0.5)
    following = (p[:, 0].cumsum(-1) <= uniforms[:, -1:] * p[:, 0].sum(-1, keepdim=True)).sum(-1)
    return torch.zeros(len(tokens), dtype=torch.int64), following
"""


@pytest.fixture
def alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A module `engine` in the present folder, and the reading end of the pipe `alive`."""
    (tmp_path / "engine.py").write_text(STEPS)
    os.mkfifo(tmp_path / "alive")
    monkeypatch.chdir(tmp_path)
    reader = os.open("alive", os.O_RDONLY | os.O_NONBLOCK)
    yield reader
    os.close(reader)


def read(pipe: int, until: bytes, seconds: float = 60) -> bool:
    """Whether the pipe gives these bytes in time; b"" is its end, as soon as nobody holds it any more."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if os.read(pipe, 1) == until:
                return True
        except BlockingIOError:
            pass
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    "step", ("hangs", *(pytest.param(step, marks=pytest.mark.whole) for step in ("crashes", "ends")))
)
def test_a_process_that_the_step_started_ends_with_it(alive: int, step: str) -> None:
    if step == "ends":
        assert certify_in_subprocess("engine:ends", probes=100).exact
    else:
        with pytest.raises(StepFailed, match="got none; it hangs|ended with code 7"):
            certify_in_subprocess(f"engine:{step}", limit=2)
    assert read(alive, b"x", 1) and read(alive, b"", 5)


def started(alive: int) -> subprocess.Popen:
    """The process of a step that hangs, as `certify_in_subprocess` starts it, once the step runs."""
    order = {"step": "engine:hangs", "shapes": None, "values": 3, "samples": 1000, "arrays": "torch"}
    child = subprocess.Popen(**child_command(json.dumps(order)))
    assert read(alive, b"x")
    return child


@pytest.mark.whole
def test_the_step_ends_when_nobody_waits_for_it_any_more(alive: int) -> None:
    with started(alive) as child:
        child.stdin.close()  # as happens when the process that waits for the certificate dies
        assert read(alive, b"", 10) and child.wait(10) == -signal.SIGKILL


@pytest.mark.whole
def test_an_interrupt_ends_the_step(alive: int) -> None:
    code = "import sys; from mmspec.certify.subprocess_run import certify_in_subprocess; certify_in_subprocess('engine:hangs')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL) as parent:
        assert read(alive, b"x")
        parent.send_signal(signal.SIGINT)
        assert read(alive, b"", 10) and parent.wait(10)

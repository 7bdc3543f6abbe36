from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import TextIO

from mmspec.certify.cases import Shape
from mmspec.certify.certificate import CaseResult, Certificate
from mmspec.certify.probes import PROBES
from mmspec.certify.runners import CaseCallback
from mmspec.certify.step import StepFailed
from mmspec.methods.modules import imported

PROBE_SHARE = 1 / 20  # the share of a case's time limit for its probes
CLOSING = 10.0  # seconds for a process to end
START = 300.0  # seconds for Python and torch to get ready, on any machine


def certify_in_subprocess(
    spec: str,
    *,
    shapes: Sequence[Shape] | None = None,
    values: int = 3,
    samples: int = 40_000,
    probes: int = PROBES,
    arrays: str = "torch",
    limit: float = 120.0,
    on_case: CaseCallback = lambda case: None,
    on_start: Callable[[int], None] = lambda cases: None,
) -> Certificate:
    """Run `certify` on the step MODULE:CALLABLE, and so the code of MODULE, in another process with this process's
    import path. It is stopped after `limit` seconds without a finished case, a twentieth of them for probes, as it may
    hang."""
    order = {
        "step": spec,
        "values": values,
        "samples": samples,
        "probes": probes,
        "seconds": PROBE_SHARE * limit,
        "arrays": arrays,
        "modules": imported(),
        "shapes": None if shapes is None else [(shape.parents, shape.drawn) for shape in shapes],
    }
    with subprocess.Popen(**child_command(json.dumps(order))) as child:
        try:
            return _listen(child, limit, on_case, on_start)
        finally:
            _end(child)


def child_command(order: str) -> dict:
    """Return the arguments of `subprocess.Popen` for the process that runs a step; `order` is JSON (see
    `subprocess_child`). The process has its own session and process group, with all that the step starts. It ends the
    group when its stdin ends, which is when this process closes the pipe or dies."""
    return {"args": [sys.executable, "-m", "mmspec.certify.subprocess_child", order], "text": True, "start_new_session": True,
            "stdin": subprocess.PIPE, "stdout": subprocess.PIPE,
            "env": os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}  # fmt: skip


def _end(child: subprocess.Popen) -> None:
    """End the process and those that it has started: its process group, or on Windows its process tree."""
    if os.name == "nt":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(child.pid)], capture_output=True, check=False)
        child.kill()
        return
    # a group without a living process is gone, or on macOS not permitted
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _listen(
    child: subprocess.Popen, limit: float, on_case: CaseCallback, on_start: Callable[[int], None]
) -> Certificate:
    lines: Queue[str] = Queue()
    Thread(target=_read, args=(child.stdout, lines), daemon=True).start()
    patience = START
    while True:
        try:
            line = lines.get(timeout=patience)
        except Empty:
            raise StepFailed(
                f"step: expected a case within {patience:g} s, got none; it hangs, or give it more time with --limit"
            ) from None
        if not line:
            raise StepFailed(
                f"step: expected a certificate, got a process that ended with code {_code(child)}; call the step "
                "yourself to see why"
            )
        message = json.loads(line)
        patience = limit
        if "cases" in message:
            on_start(message["cases"])
        elif "case" in message:
            on_case(_case(message["case"]))
        elif "error" in message:
            raise StepFailed(message["error"])
        elif "certificate" in message:
            fields = message["certificate"]
            return Certificate(**fields | {"cases": [_case(case) for case in fields["cases"]]})


def _code(child: subprocess.Popen) -> int:
    try:
        return child.wait(CLOSING)
    except subprocess.TimeoutExpired:  # the step has closed files that are not its own
        child.kill()
        return child.wait()


def _read(stream: TextIO, lines: Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def _case(fields: dict) -> CaseResult:
    return CaseResult(**fields | {"parents": tuple(fields["parents"])})

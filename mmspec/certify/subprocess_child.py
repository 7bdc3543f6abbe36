"""The process that runs somebody's step: one line of JSON in its arguments, lines of JSON on its stdout.

`python -m mmspec.certify.subprocess_child {"step": "my_engine.accept:step", ...}`; `subprocess_run` starts it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from threading import Thread
from typing import TextIO


def main(order: str, out: TextIO) -> None:
    """Examines a step and writes {"ready": true}, {"case": ...} as often as one is done, and {"certificate": ...} or
    {"error": a sentence}."""

    def say(**message: object) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    from mmspec.methods.modules import import_methods

    asked = json.loads(order)
    spec, shapes = asked.pop("step"), asked.pop("shapes")
    try:
        for module in asked.pop("modules", ()):
            import_methods(module)
        from mmspec.certify.cases import Shape
        from mmspec.certify.examination import certify
        from mmspec.certify.step import load_step

        say(ready=True)
        step = load_step(spec)
        shapes = None if shapes is None else [Shape(tuple(parents), drawn) for parents, drawn in shapes]
        found = certify(step, shapes=shapes, name=spec, on_case=lambda case: say(case=asdict(case)), **asked)
    except ValueError as error:
        say(error=" ".join(str(error).split()))
    else:
        say(certificate=found.to_dict())


def end_with(pipe: int) -> None:
    """Waits for the end of a pipe, then ends this process and its process group, as far as that is its own.

    Args:
        pipe: A file descriptor that is open for reading. The process that waits for the certificate holds its other end.
    """
    while os.read(pipe, 1024):
        pass
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    # the step reads nothing of ours
    Thread(target=end_with, args=(os.dup(0),), daemon=True).start()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    # what the step prints goes to stderr, so that it cannot be taken for ours
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    main(sys.argv[1], channel)

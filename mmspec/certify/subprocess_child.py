"""The process that runs the step under test: a line of JSON as its argument, lines of JSON on its stdout.

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
    """Examine a step and write lines of JSON: {"ready": true}, {"cases": their number}, a {"case": ...} per case, and
    {"certificate": ...} or {"error": a sentence}."""

    def send(**message: object) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    from mmspec.methods.modules import import_methods

    settings = json.loads(order)
    spec, shapes = settings.pop("step"), settings.pop("shapes")
    try:
        for module in settings.pop("modules", ()):
            import_methods(module)
        from mmspec.certify.cases import Shape
        from mmspec.certify.examination import certify
        from mmspec.certify.step import load_step

        send(ready=True)
        step = load_step(spec)
        shapes = None if shapes is None else [Shape(tuple(parents), drawn) for parents, drawn in shapes]
        certificate = certify(
            step,
            shapes=shapes,
            name=spec,
            on_start=lambda cases: send(cases=cases),
            on_case=lambda case: send(case=asdict(case)),
            **settings,
        )
    except ValueError as error:
        send(error=" ".join(str(error).split()))
    else:
        send(certificate=certificate.to_dict())


def end_with(pipe: int) -> None:
    """Wait for the end of a pipe, a file descriptor open for reading, whose other end the process that waits for the
    certificate holds. Then end this process, and its process group if that is its own."""
    while os.read(pipe, 1024):
        pass
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    # the step must not read this process's stdin
    Thread(target=end_with, args=(os.dup(0),), daemon=True).start()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    # prints of the step go to stderr, apart from the messages
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    main(sys.argv[1], channel)

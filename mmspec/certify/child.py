"""The process that runs somebody's step: one line of JSON in its arguments, lines of JSON on its stdout.

`python -m mmspec.certify.child '{"step": "my_engine.accept:step", "trees": null, ...}'`, as `apart` starts it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TextIO


def main(order: str, out: TextIO) -> None:
    """Examines a step and writes {"ready": true}, {"case": ...} as often as one is done, and {"certificate": ...} or
    {"error": a sentence}."""

    def say(**message: object) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    from mmspec.certify.cases import Shape
    from mmspec.certify.examination import certify
    from mmspec.certify.named import step_named

    asked = json.loads(order)
    spec, shapes = asked.pop("step"), asked.pop("shapes")
    say(ready=True)
    try:
        step = step_named(spec)
        shapes = None if shapes is None else [Shape(tuple(parents), drawn) for parents, drawn in shapes]
        found = certify(step, shapes=shapes, name=spec, told=lambda case: say(case=asdict(case)), **asked)
    except ValueError as error:
        say(error=" ".join(str(error).split()))
    else:
        say(certificate=found.to_dict())


if __name__ == "__main__":
    # what the step prints goes to stderr, so that it cannot be taken for ours
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    main(sys.argv[1], channel)

"""`mmspec video` run on random tiny models, for the tests of its command."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from tests.evaluate.tiny_video import BLOCKS

runner = CliRunner()
FRAMES = 3 + 4 * (BLOCKS - 1)


def invoked(*words: str, out: str = "out.gif"):
    return runner.invoke(app, ["video", "a red circle", "--seed", "1", "--out", out, "--json", "out.json", *words])


def drawn(*words: str, out: str = "out.gif") -> dict:
    """The record of a video that must succeed, whose screen line shows the record's figures."""
    result = invoked(*words, out=out)
    assert result.exit_code == 0, (result.stderr, result.exception)
    record = json.loads(Path("out.json").read_text())
    line = result.stdout.splitlines()[-1]
    for shown in (
        f"{record['seconds']} s",
        "seed 1",
        f"{record['frames']} frames",
        record["out"],
        record["model"],
        "(exact)" if record["exact"] else "(relaxed)",
    ):
        assert shown in line
    return record


def refused(*words: str, out: str = "refused.gif") -> str:
    result = invoked(*words, out=out)
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stdout == "" and not Path(out).exists()
    (line,) = result.stderr.splitlines()
    return line


def frames_of(file: str) -> int:
    with Image.open(file) as found:
        return found.n_frames

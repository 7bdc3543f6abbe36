"""Rows of `mmspec bench image`: a rule of your own at three settings, in a suite with plain decoding."""

from dataclasses import replace

import rule  # noqa: F401  registers "eager"

from mmspec.cli import app
from mmspec.evaluate.image.methods import ImageMethod
from mmspec.evaluate.image.suites import SUITES

speed = SUITES["speed"]
rows = [
    ImageMethod(f"eager-{factor}", f"SJD 16, eager {factor}", f"eager:factor={factor}", decoding="sjd:window=16")
    for factor in (1.0, 1.5, 2.0)
]
plain = next(row for row in speed.methods if row.key == "ar")
SUITES["eager"] = replace(speed, about="the eager rule on SJD drafts", methods=(plain, *rows))

if __name__ == "__main__":
    options = "--prompts 2 --batch 1 --guidance 4 --top-k 0 --temperature 1"
    app(["bench", "image", "--suite", "eager", *options.split()])

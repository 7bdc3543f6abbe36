"""Streamers: transformers drops them on the `custom_generate` path, so they are found and fed here."""

from __future__ import annotations

import sys

import torch
from transformers import GenerationMixin

_GENERATE = getattr(GenerationMixin.generate, "__wrapped__", GenerationMixin.generate).__code__


def streamer_of_caller() -> object | None:
    """The `streamer` given to the `transformers.generate` call this code runs under, if there is one.

    `generate` hands a callable every argument but the streamer, after having put the prompt on it; an iterating reader
    would then wait for ever. The call's own frame still holds it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _GENERATE:
            return frame.f_locals.get("streamer")
        frame = frame.f_back
    return None


class StreamerFeed:
    """Passes accepted runs on: to `put_run(ids, accepted)` where the streamer has it, else token by token to `put`."""

    def __init__(self, streamer: object):
        self.streamer = streamer

    def __call__(self, row: int, run: list[int], accepted: int) -> None:
        """run: ids row `row` emitted this round, the first `accepted` of them drafted ones."""
        if hasattr(self.streamer, "put_run"):
            self.streamer.put_run(run, accepted)
            return
        for token in run:
            self.streamer.put(torch.tensor([token]))

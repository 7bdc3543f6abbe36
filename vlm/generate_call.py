"""The context of a `transformers.generate` call: what it knows but does not pass on to a `custom_generate` callable."""

from __future__ import annotations

import sys
from types import FrameType

from transformers import GenerationMixin

_GENERATE = getattr(GenerationMixin.generate, "__wrapped__", GenerationMixin.generate).__code__


def _call() -> FrameType | None:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    return frame


def streamer_of_call() -> object | None:
    """The `streamer` given to the `transformers.generate` call this code runs under, if there is one.

    `generate` hands a callable every argument but the streamer, after having put the prompt on it; an iterating reader
    would then wait for ever. The call's own frame still holds it.
    """
    frame = _call()
    return None if frame is None else frame.f_locals.get("streamer")


def inputs_of_call() -> dict | None:
    """The inputs given to that call, before the target's vision tower turned pictures into its own features."""
    frame = _call()
    return None if frame is None else {"inputs": frame.f_locals.get("inputs"), **frame.f_locals.get("kwargs", {})}

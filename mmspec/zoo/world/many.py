"""Prompts about several pictures at once."""

from __future__ import annotations

import numpy as np

from .captions import brief_caption, caption
from .phrases import choose
from .questions import question
from .scene import Scene

ORDINALS = ("first", "second", "third")
_WHOLE = ("Describe the {} picture.", "What is in the {} picture?")
_BRIEF = ("Describe the {} picture briefly.", "List the objects of the {} image.")


def many_turn(scenes: tuple[Scene, ...], seed: int) -> tuple[str, str]:
    """A prompt about one of `scenes` and its answer: a caption, a short list, or an answered question."""
    rng = np.random.default_rng((scenes[0].seed, seed, 4))
    index = int(rng.integers(len(scenes)))
    style, name = rng.random(), ORDINALS[index]
    if style < 0.4:
        return choose(rng, _WHOLE, 0.5).format(name), caption(scenes[index], seed)
    if style < 0.7:
        return choose(rng, _BRIEF, 0.5).format(name), brief_caption(scenes[index], seed)
    asked = question(scenes[index], seed)
    return f"In the {name} picture, {asked.prompt[0].lower()}{asked.prompt[1:]}", asked.answer

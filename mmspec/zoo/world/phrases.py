"""Small pieces of language: weighted choice, articles, positions, and the noun phrase of an object."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from .scene import Thing

POSITIONS = (
    ("top left", "upper left", "top left corner"),
    ("top center", "upper middle"),
    ("top right", "upper right", "top right corner"),
    ("middle left", "center left"),
    ("center", "very middle"),
    ("middle right", "center right"),
    ("bottom left", "lower left", "bottom left corner"),
    ("bottom center", "lower middle"),
    ("bottom right", "lower right", "bottom right corner"),
)
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def choose(rng: np.random.Generator, options: Sequence, skew: float = 0.7):
    """One of `options`, the r-th with weight `1 / r**skew`: fluent text has favourites."""
    if len(options) == 1:
        return options[0]
    edges = np.cumsum(1.0 / np.arange(1, len(options) + 1) ** skew)
    return options[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))]


def chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def with_article(words: str) -> str:
    """`a` or `an` before `words`; the digit 8 is read "eight"."""
    return ("an " if words[0] in "aeiou8" else "a ") + words


def capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def position_name(rng: np.random.Generator, cell: int) -> str:
    return choose(rng, POSITIONS[cell], skew=1.2)


def short_name(thing: Thing) -> str:
    """Color and kind, the two words that identify an object: "red star", "blue 7"."""
    return f"{thing.color} {thing.kind}"


def noun_phrase(rng: np.random.Generator, thing: Thing, full: bool = False) -> str:
    """An indefinite noun phrase; size and texture come and go, color always stands before the kind."""
    words = [thing.size] if full or chance(rng, 0.7) else []
    tail = ""
    if thing.is_digit:
        words += [thing.color, choose(rng, ("", "", "handwritten", "digit", "number")), thing.kind]
    else:
        show = chance(rng, 0.65 if thing.texture != "plain" else 0.25)
        if show and thing.texture != "plain" and chance(rng, 0.3):
            tail = {"striped": " with stripes", "dotted": " with dots"}[thing.texture]
        elif show:
            words.append(thing.texture)
        words += [thing.color, thing.kind]
    return with_article(" ".join(word for word in words if word)) + tail


def plural(count: int, noun: str) -> str:
    """A counted noun: "no stars", "one star", "two stars"."""
    return f"{COUNTS[count]} {noun}{'' if count == 1 else 's'}"


def count_tokens(text: str) -> int:
    """Words and punctuation marks of `text`: its length in tokens of the world's tokenizer."""
    return len(re.findall(r"\w+|[^\w\s]", text))

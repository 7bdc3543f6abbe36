"""Documents of the world: pages of words and digits, their text and their pixels, each a pure function of its seed.

A page is a table with a word and two numbers per line, or a paragraph of short sentences. It has 12 lines of 12 letters
and the size of scene pictures, so that every reader of scenes accepts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmspec.zoo.world.glyphs import LETTER_CELL, LETTER_HEIGHT, LETTER_WIDTH, letter_mask
from mmspec.zoo.world.language import choose
from mmspec.zoo.world.scene import COLORS, IMAGE_SIDE, SHAPES, TONES, is_eval_seed, jitter, pick

LINES = COLUMNS = IMAGE_SIDE // LETTER_CELL
REQUESTS = ("Transcribe the document.", "Write down what the page says.", "Read the text.")
TABLE_SHARE = 0.7
ITEMS = (*COLORS, *SHAPES, *TONES)  # of these, a table uses words that leave room for two numbers
HEADS = ("item", "name", "kind")
_PAPER, _INK = (222, 218, 206), (36, 36, 44)
_UNITS = ("cm", "mm", "kg")


@dataclass(frozen=True, slots=True)
class Document:
    seed: int
    lines: tuple[str, ...]  # at most 12 of at most 12 letters
    text: str  # words separated by a space, lines of a table by a line break
    x: int  # left pixel of the first letter
    y: int  # top pixel of the first letter
    paper: tuple[int, int, int]  # RGB
    ink: tuple[int, int, int]  # RGB
    phase: int  # seed of the paper's grain


def sample_document(seed: int) -> Document:
    is_eval_seed(seed)
    rng = np.random.default_rng((seed, 71))
    lines, text = _table(rng) if rng.random() < TABLE_SHARE else _paragraph(rng)
    left, top = int(rng.integers(4)), int(rng.integers(2))
    paper, ink = jitter(rng, _PAPER, 16), jitter(rng, _INK, 24)
    return Document(seed, lines, text, left, top, paper, ink, int(rng.integers(1 << 30)))


def document_turn(rng: np.random.Generator, document: Document) -> tuple[str, str]:
    return choose(rng, REQUESTS, 0.4), document.text


def words_right(said: str, document: Document) -> float:
    """Return the share of correct words, 0..1: words that both texts have in the same order, of the longer text."""
    words, truth = said.split(), document.text.split()
    return _common(words, truth) / max(len(words), len(truth))


def _table(rng: np.random.Generator) -> tuple[tuple[str, ...], str]:
    """Return a line of heads, then lines of a word and two numbers, in columns."""
    digits = pick(rng, [(2, 2), (3, 1), (1, 3)])
    sizes = [max(size, 2) for size in digits]  # heads have two letters
    free = COLUMNS - sum(sizes) - 2
    items = [word for word in ITEMS if len(word) <= free]
    rows = [(pick(rng, HEADS), *pick(rng, (("no", "kg"), ("mm", "no"))))]
    rows += [(pick(rng, items), *(_number(rng, size) for size in digits)) for _ in range(int(rng.integers(8, LINES)))]
    lines = tuple(f"{row[0]:<{free}} {row[1]:>{sizes[0]}} {row[2]:>{sizes[1]}}" for row in rows)
    return lines, "\n".join(" ".join(row) for row in rows)


def _paragraph(rng: np.random.Generator) -> tuple[tuple[str, ...], str]:
    words: list[str] = []
    while True:
        longer = words + _sentence(rng)
        if len(_broken(longer)) > LINES:
            return tuple(_broken(words)), " ".join(words)
        words = longer


def _sentence(rng: np.random.Generator) -> list[str]:
    color, shape, tone = pick(rng, tuple(COLORS)), pick(rng, SHAPES), pick(rng, tuple(TONES))
    shapes = shape + ("es" if shape.endswith("s") else "s")
    number, many = _number(rng, int(rng.integers(1, 4))), _number(rng, 2)
    forms = (
        f"the {color} {shape} is {number} {pick(rng, _UNITS)}.",
        f"send {many} {color} {shapes}.",
        f"box {number} holds {many} {tone} {shapes}.",
        f"pay {number} for a {tone} {shape}.",
        f"{many} {shapes} cost {number}.",
    )
    return pick(rng, forms).split()


def _broken(words: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= COLUMNS:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _number(rng: np.random.Generator, digits: int) -> str:
    return str(int(rng.integers(10 ** (digits - 1), 10**digits)))


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    best = [0] * (len(second) + 1)
    for word in first:
        before = 0
        for place, other in enumerate(second, 1):
            before, best[place] = best[place], before + 1 if word == other else max(best[place], best[place - 1])
    return best[-1]


_GRAIN = 6.0


def page_array(document: Document) -> np.ndarray:
    """Return the page as uint8 [96, 96, 3] RGB."""
    side = IMAGE_SIDE
    noise = np.random.default_rng(document.phase).standard_normal((side, side, 1), dtype=np.float32)
    canvas = np.asarray(document.paper, dtype=np.float32) + _GRAIN * noise
    ink = np.asarray(document.ink, dtype=np.float32) + _GRAIN * noise
    for row, line in enumerate(document.lines):
        for column, letter in enumerate(line):
            top, left = row * LETTER_CELL + document.y, column * LETTER_CELL + document.x
            window = np.s_[top : top + LETTER_HEIGHT, left : left + LETTER_WIDTH]
            canvas[window] = np.where(letter_mask(letter)[..., None], ink[window], canvas[window])
    return np.clip(canvas, 0, 255).astype(np.uint8)


def page(document: Document) -> Image.Image:
    """Return the document as a 96x96 RGB image."""
    return Image.fromarray(page_array(document))

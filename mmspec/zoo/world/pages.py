"""Documents as pixels: dark letters on light paper with grain, every letter inside one 8x8 cell."""

from __future__ import annotations

import numpy as np
from PIL import Image

from .documents import Document
from .letters import CELL, HEIGHT, WIDTH, letter_mask
from .words import IMAGE_SIDE

_GRAIN = 6.0


def page_array(document: Document) -> np.ndarray:
    """The page as uint8 [96, 96, 3] RGB."""
    side = IMAGE_SIDE
    noise = np.random.default_rng(document.phase).standard_normal((side, side, 1), dtype=np.float32)
    canvas = np.asarray(document.paper, dtype=np.float32) + _GRAIN * noise
    ink = np.asarray(document.ink, dtype=np.float32) + _GRAIN * noise
    for row, line in enumerate(document.lines):
        for column, letter in enumerate(line):
            top, left = row * CELL + document.y, column * CELL + document.x
            window = np.s_[top : top + HEIGHT, left : left + WIDTH]
            canvas[window] = np.where(letter_mask(letter)[..., None], ink[window], canvas[window])
    return np.clip(canvas, 0, 255).astype(np.uint8)


def page(document: Document) -> Image.Image:
    """The document as a 96x96 RGB image."""
    return Image.fromarray(page_array(document))

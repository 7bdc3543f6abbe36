"""Handwritten digit glyphs (UCI optical digits, as bundled with scikit-learn), split for training and evaluation."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from PIL import Image

EVAL_EVERY = 5  # every fifth handwritten sample is kept for evaluation


@lru_cache(maxsize=1)
def _samples() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return bundle.images.astype(np.float32), bundle.target.astype(np.int64)  # [1797, 8, 8], [1797]


@cache
def digit_samples(digit: int, evaluation: bool) -> tuple[int, ...]:
    """Indices of the handwritten samples of `digit` in one of the two disjoint splits."""
    if not 0 <= digit <= 9:
        raise ValueError(f"expected a digit from 0 to 9, got {digit}, pass one decimal digit")
    _, targets = _samples()
    found = np.flatnonzero(targets == digit)
    return tuple(int(i) for i in found if (i % EVAL_EVERY == 0) == evaluation)


@lru_cache(maxsize=16384)
def digit_mask(sample: int, pixels: int, slant: int = 0, turn: int = 0) -> np.ndarray:
    """Coverage of one handwritten glyph in a square, float32 [pixels, pixels] in 0..1.

    `slant` and `turn` in -2..2 shear and rotate it a little: few samples exist and a tower would learn them by heart.
    """
    images, _ = _samples()
    glyph = Image.fromarray(images[sample]).resize((pixels, pixels), Image.Resampling.BICUBIC)
    if slant or turn:
        center, angle = (pixels - 1) / 2, turn * 0.08
        cos, sin, shear = np.cos(angle), np.sin(angle), slant * 0.09
        a, b, d, e = cos + shear * sin, shear * cos - sin, sin, cos
        shift = (center - a * center - b * center, center - d * center - e * center)
        affine = (a, b, shift[0], d, e, shift[1])
        glyph = glyph.transform(glyph.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    return np.clip((np.asarray(glyph) - 3.5) / 6.0, 0.0, 1.0).astype(np.float32)

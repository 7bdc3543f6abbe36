"""Bitmaps of the world: anti-aliased shapes and textures, handwritten digits, and the 5x7 letters of documents."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from einops import rearrange
from PIL import Image

SUPERSAMPLE = 6


def _inside(shape: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    # x, y in -1..1, y down
    if shape == "circle":
        return x**2 + y**2 <= 0.92
    if shape == "ring":
        r = np.hypot(x, y)
        return (r <= 0.96) & (r >= 0.52)
    if shape == "square":
        return np.maximum(abs(x), abs(y)) <= 0.84
    if shape == "diamond":
        return abs(x) * 1.2 + abs(y) <= 0.98
    if shape == "triangle":
        return (y <= 0.82) & (abs(x) <= (y + 0.92) * 0.56)
    if shape == "cross":
        return (np.minimum(abs(x), abs(y)) <= 0.3) & (np.maximum(abs(x), abs(y)) <= 0.92)
    if shape == "heart":
        u, v = x * 1.2, -y * 1.2 + 0.12
        return (u**2 + v**2 - 1) ** 3 - u**2 * v**3 <= 0
    if shape == "star":
        angle = np.arctan2(x, -y)
        step = np.pi / 5
        wedge = abs((angle + step) % (2 * step) - step)  # 0 at a tip, pi/5 at a notch
        outer, inner = 1.0, 0.42
        edge = outer * inner * np.sin(step) / (inner * np.sin(step - wedge) + outer * np.sin(wedge))
        return np.hypot(x, y + 0.06) <= edge
    raise ValueError(f"expected a shape of the world, got {shape!r}, see SHAPES of mmspec.zoo.world.scene")


@cache
def shape_mask(shape: str, pixels: int) -> np.ndarray:
    """Return the coverage of a shape that fills a square, float32 [pixels, pixels] in 0..1."""
    fine = pixels * SUPERSAMPLE
    axis = (np.arange(fine) + 0.5) / fine * 2 - 1
    inside = _inside(shape, axis[None, :], axis[:, None])
    return rearrange(inside, "(r i) (c j) -> r i c j", i=SUPERSAMPLE, j=SUPERSAMPLE).mean((1, 3)).astype(np.float32)


@cache
def texture_mask(texture: str, pixels: int) -> np.ndarray:
    """Return the share of an object's color under a texture, float32 [pixels, pixels, 1]."""
    rows, columns = np.mgrid[0:pixels, 0:pixels]
    if texture == "striped":
        dark = (rows + columns) % 6 < 3
    elif texture == "dotted":
        dark = ((rows % 5) < 2) & ((columns % 5) < 2)
    else:
        dark = np.zeros((pixels, pixels), dtype=bool)
    return np.where(dark, 0.42, 1.0).astype(np.float32)[..., None]


EVAL_EVERY = 5  # every fifth handwritten sample is for evaluation


@lru_cache(maxsize=1)
def _samples() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    return bundle.images.astype(np.float32), bundle.target.astype(np.int64)  # [1797, 8, 8], [1797]


@cache
def digit_samples(digit: int, evaluation: bool) -> tuple[int, ...]:
    """Return the indices of the handwritten samples of a digit 0..9 in one of the two disjoint splits."""
    if not 0 <= digit <= 9:
        raise ValueError(f"expected a digit from 0 to 9, got {digit}, pass one decimal digit")
    _, targets = _samples()
    indices = np.flatnonzero(targets == digit)
    return tuple(int(i) for i in indices if (i % EVAL_EVERY == 0) == evaluation)


@lru_cache(maxsize=16384)
def digit_mask(sample: int, pixels: int, slant: int = 0, turn: int = 0) -> np.ndarray:
    """Return the coverage of a handwritten digit in a square, float32 [pixels, pixels] in 0..1. Shear and rotation in
    -2..2 vary the few samples, which a tower would memorise."""
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


LETTER_CELL = 8  # pixels per side of a cell: a letter, its spacing, and room to shift the page
LETTER_WIDTH, LETTER_HEIGHT = 5, 7

# seven rows of each letter from the top, five bits a row as two hexadecimal digits
_ROWS = {
    "0": "0e11131519110e", "1": "040c040404040e", "2": "0e11010204081f", "3": "1f02040201110e", "4": "02060a121f0202",
    "5": "1f101e0101110e", "6": "0608101e11110e", "7": "1f010204080808", "8": "0e11110e11110e", "9": "0e11110f01020c",
    "a": "00000e010f110f", "b": "10101619111e00", "c": "00000e1010110e", "d": "01010d1311110f", "e": "00000e111f100e",
    "f": "0609081c080808", "g": "000f11110f010e", "h": "10101619111111", "i": "04000c0404040e", "j": "0200060202120c",
    "k": "10101214181412", "l": "0c04040404040e", "m": "00001a15151111", "n": "00001619111111", "o": "00000e1111110e",
    "p": "00001e111e1010", "q": "00000d130f0101", "r": "00001619101010", "s": "00000e100e011e", "t": "08081c08080906",
    "u": "0000111111130d", "v": "00001111110a04", "w": "0000111115150a", "x": "0000110a040a11", "y": "000011110f010e",
    "z": "00001f0204081f", ".": "00000000000c0c", ",": "000000000c0408",
}  # fmt: skip
LETTERS = "".join(_ROWS)


@cache
def letter_mask(letter: str) -> np.ndarray:
    """Return the inked pixels of a letter or a space, bool [7, 5]."""
    if letter == " ":
        return np.zeros((LETTER_HEIGHT, LETTER_WIDTH), dtype=bool)
    if letter not in _ROWS:
        raise ValueError(f"letter: expected one of {LETTERS!r} or a space, got {letter!r}; write it with those")
    rows = np.frombuffer(bytes.fromhex(_ROWS[letter]), dtype=np.uint8)
    return (rows[:, None] >> np.arange(LETTER_WIDTH)[::-1]) & 1 == 1

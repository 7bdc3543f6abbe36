"""Anti-aliased masks of the eight shapes and of the two object textures, cached by size."""

from __future__ import annotations

from functools import cache

import numpy as np

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
    raise ValueError(f"expected a shape of the world, got {shape!r}, see words.SHAPES")


@cache
def shape_mask(shape: str, pixels: int) -> np.ndarray:
    """Coverage of a shape filling a square, float32 [pixels, pixels] in 0..1."""
    fine = pixels * SUPERSAMPLE
    axis = (np.arange(fine) + 0.5) / fine * 2 - 1
    inside = _inside(shape, axis[None, :], axis[:, None])
    return inside.reshape(pixels, SUPERSAMPLE, pixels, SUPERSAMPLE).mean((1, 3)).astype(np.float32)


@cache
def texture_mask(texture: str, pixels: int) -> np.ndarray:
    """How much an object keeps of its color under a texture, float32 [pixels, pixels, 1]."""
    rows, columns = np.mgrid[0:pixels, 0:pixels]
    if texture == "striped":
        dark = (rows + columns) % 6 < 3
    elif texture == "dotted":
        dark = ((rows % 5) < 2) & ((columns % 5) < 2)
    else:
        dark = np.zeros((pixels, pixels), dtype=bool)
    return np.where(dark, 0.42, 1.0).astype(np.float32)[..., None]

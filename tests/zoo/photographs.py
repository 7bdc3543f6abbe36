"""Photographs that other packages bring along: where they are, and their files in other modes, formats and orientations."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# photographs inside the wheel of scikit-image; the rest of its pictures are fetched or drawn
SKIMAGE = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "hubble_deep_field.jpg", "moon.png",
           "retina.jpg", "rocket.jpg")  # fmt: skip
SKLEARN = ("china.jpg", "flower.jpg")
NAMES = SKIMAGE + SKLEARN
ORIENTATION = 0x0112  # EXIF's tag


def photograph(name: str) -> Image.Image:
    """A photograph in 8-bit RGB; the test is skipped where its package is not installed."""
    package, folder = ("skimage", "data") if name in SKIMAGE else ("sklearn", "datasets/images")
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{name} is a photograph of {package}, which is not installed")
    return _opened(Path(spec.submodule_search_locations[0]) / folder / name).copy()


@cache
def _opened(path: Path) -> Image.Image:
    with Image.open(path) as file:
        return Image.fromarray(np.asarray(file.convert("RGB")))


def shrunk(picture: Image.Image, longest: int) -> Image.Image:
    """The picture with a longer side of `longest` pixels."""
    ratio = longest / max(picture.size)
    return picture.resize(tuple(max(round(side * ratio), 4) for side in picture.size), Image.Resampling.LANCZOS)


def file_of(picture: Image.Image, kind: str, orientation: int = 1, **options: object) -> bytes:
    """The bytes of a file of `kind` (PNG, JPEG, WEBP) whose EXIF declares an orientation from 1 to 8."""
    exif, file = Image.Exif(), BytesIO()
    if orientation > 1:
        exif[ORIENTATION] = orientation
    picture.save(file, kind, exif=exif, **options)
    return file.getvalue()


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels [H, W, ...] as a viewer shows them that lie in a file with this EXIF orientation."""
    rows, columns = pixels[::-1], pixels[:, ::-1]
    across = pixels.swapaxes(0, 1)
    return {
        1: pixels,
        2: columns,
        3: rows[:, ::-1],
        4: rows,
        5: across,
        6: across[:, ::-1],
        7: across[::-1, ::-1],
        8: across[::-1],
    }[orientation]


def on_white(pixels: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] of pixels [H, W, 3] behind alpha [H, W] on a white ground."""
    share = alpha[..., None] / 255.0
    return np.rint(pixels * share + 255.0 * (1 - share)).astype(np.uint8)

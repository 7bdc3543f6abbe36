"""Several pictures on one sheet."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

from PIL import Image

GAP = 2


def sheet(pictures: Sequence[Image.Image]) -> Image.Image:
    """The pictures, all of one size, row by row on a sheet about as wide as it is high; a single one as it is."""
    if len(pictures) == 1:
        return pictures[0]
    columns = ceil(sqrt(len(pictures)))
    rows = ceil(len(pictures) / columns)
    width, height = (side + GAP for side in pictures[0].size)
    made = Image.new("RGB", (columns * width - GAP, rows * height - GAP), "white")
    for number, picture in enumerate(pictures):
        made.paste(picture, (number % columns * width, number // columns * height))
    return made

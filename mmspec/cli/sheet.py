"""Several pictures on one sheet."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

from PIL import Image

GAP = 2


def sheet(pictures: Sequence[Image.Image | None]) -> Image.Image:
    """The pictures, all of one size, row by row on a sheet about as wide as it is high; a single one as it is.

    The place of a picture that is None stays white; at least one must be there.
    """
    if len(pictures) == 1:
        return pictures[0]
    columns = ceil(sqrt(len(pictures)))
    rows = ceil(len(pictures) / columns)
    width, height = (side + GAP for side in next(picture.size for picture in pictures if picture is not None))
    made = Image.new("RGB", (columns * width - GAP, rows * height - GAP), "white")
    for number, picture in enumerate(pictures):
        if picture is not None:
            made.paste(picture, (number % columns * width, number // columns * height))
    return made

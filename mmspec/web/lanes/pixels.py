"""Two pictures beside each other, and where they differ."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from mmspec.io.files import encode_image

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST_SIDE = 384  # pixels of a side, at least
SIDES = "Left of the line is plain decoding, right of it the fast lane."


def enlarged(picture: Image) -> Image:
    """As large as SHOWN at least, every pixel a square."""
    from PIL.Image import Resampling

    times = max(1, -(-LEAST_SIDE // min(picture.size)))
    return picture.resize((picture.width * times, picture.height * times), Resampling.NEAREST)


def difference(one: Image, other: Image) -> tuple[str, Image | None]:
    """One sentence on how the pixels of two pictures differ, and a map of where; no map where they are identical."""
    from PIL import Image

    first, second = (np.asarray(picture.convert("RGB")).astype(np.int16) for picture in (one, other))
    if first.shape != second.shape:
        sizes = " and ".join(f"{picture.width}x{picture.height}" for picture in (one, other))
        return f"Pixel difference: the pictures have different sizes, {sizes}.", None
    apart = np.abs(first - second).max(-1)
    pixels, most = int((apart > 0).sum()), int(apart.max())
    if not pixels:
        return f"Pixel difference: identical, all {apart.size:,} pixels of both pictures are equal.", None
    scaled = (apart * (255 / most)).astype(np.uint8)
    return (
        f"Pixel difference: {pixels:,} of {apart.size:,} pixels differ, by at most {most} of 255 levels.",
        Image.fromarray(scaled),
    )


def difference_view(one: Image, other: Image) -> str:
    """`difference` as HTML."""
    sentence, shown = difference(one, other)
    picture = "" if shown is None else embedded(enlarged(shown), "where the pictures differ, white most")
    state = "different" if shown is not None else "same"
    return f'<div class="mm-difference" data-state="{state}"><p class="mm-note">{SIDES} {escape(sentence)}</p>{picture}</div>'


def embedded(picture: Image, text: str) -> str:
    """An `img` that holds the picture itself.   text: what it shows."""
    held = base64.b64encode(encode_image(picture, "PNG")).decode("ascii")
    return f'<img class="mm-picture" alt="{escape(text)}" src="data:image/png;base64,{held}">'


def animation(frames: np.ndarray, fps: float, text: str) -> str:
    """An `img` that plays frames uint8 [F, H, W, 3].   text: what it shows."""
    from PIL import Image

    first, *more = (enlarged(Image.fromarray(frame)) for frame in frames)
    # players take less than two hundredths of a second for ten
    told = {"save_all": True, "append_images": more, "duration": max(20, round(1000 / fps)), "loop": 0}
    held = base64.b64encode(encode_image(first, "GIF", **told)).decode("ascii")
    return f'<img class="mm-picture" alt="{escape(text)}" src="data:image/gif;base64,{held}">'

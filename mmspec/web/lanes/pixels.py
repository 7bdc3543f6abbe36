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
SAMPLED = "Both lanes sample with their own random numbers, so their pictures differ."
SIDES = "Drag the line: plain decoding is on its left, the fast lane on its right."


def enlarged(picture: Image) -> Image:
    """Return a picture enlarged by a whole number to at least LEAST_SIDE."""
    from PIL.Image import Resampling

    times = max(1, -(-LEAST_SIDE // min(picture.size)))
    return picture.resize((picture.width * times, picture.height * times), Resampling.NEAREST)


def difference(plain: Image, fast: Image) -> tuple[str, Image | None]:
    """Return a sentence on the pixel difference of two pictures, and a map of it; None for identical pictures."""
    from PIL import Image

    first, second = (np.asarray(picture.convert("RGB")).astype(np.int16) for picture in (plain, fast))
    if first.shape != second.shape:
        sizes = " and ".join(f"{picture.width}x{picture.height}" for picture in (plain, fast))
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


def difference_view(plain: Image, fast: Image) -> str:
    sentence, pixels = difference(plain, fast)
    text = escape(f"{SIDES} {sentence}")
    picture = "" if pixels is None else embedded(enlarged(pixels), "where the pictures differ, white most")
    state = "different" if pixels is not None else "same"
    return f'<div class="mm-difference" data-state="{state}"><p class="mm-caption">{text}</p>{picture}</div>'


def sampled_view() -> str:
    """Return the sentence in the place of a difference, for two samples that are not equal."""
    return f'<div class="mm-difference" data-state="different"><p class="mm-caption">{SAMPLED}</p></div>'


def embedded(picture: Image, text: str) -> str:
    """Return an `img` with the picture inside, described by a text."""
    data = base64.b64encode(encode_image(picture, "PNG")).decode("ascii")
    return f'<img class="mm-picture" alt="{escape(text)}" src="data:image/png;base64,{data}">'


def animation(frames: np.ndarray, fps: float, text: str) -> str:
    """Return an `img` that plays frames uint8 [F, H, W, 3], described by a text."""
    from PIL import Image

    first, *more = (enlarged(Image.fromarray(frame)) for frame in frames)
    # players read less than two hundredths of a second as ten
    options = {"save_all": True, "append_images": more, "duration": max(20, round(1000 / fps)), "loop": 0}
    data = base64.b64encode(encode_image(first, "GIF", **options)).decode("ascii")
    return f'<img class="mm-picture" alt="{escape(text)}" src="data:image/gif;base64,{data}">'

"""How much of what was asked for each single frame shows: colors and shapes read off it without any model.

`tracking.agreement` judges a whole video, and whether an object goes the right way; this judges frames, wherever their objects
have got to by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .moving import Mover
from .moving_frames import mover_mask
from .tracking import LEAST_PIXELS, squared, track, without_grain

_LEAST_SIZE = 0.6  # of the asked object's pixels; what is smaller counts for less


def likeness(frames: np.ndarray, movers: Sequence[Mover]) -> np.ndarray:
    """float64 [F] in 0..1 of frames uint8 [F, H, W, 3]: the mean over the movers of how far what has their color overlaps with
    what they look like, both brought into one square; 0 where the color is not seen. Where they are does not count.

    Raises ValueError for no movers.
    """
    if not movers:
        raise ValueError("movers: expected at least one object that is asked for, got none; name one")
    return np.mean([_overlap(track(frames, mover.color).mask, mover) for mover in movers], axis=0)


def _overlap(masks: np.ndarray, mover: Mover) -> np.ndarray:
    asked, pixels = _template(mover)
    found = np.zeros(len(masks))
    for frame, mask in enumerate(masks):
        if (count := int(mask.sum())) >= LEAST_PIXELS:
            seen = squared(mask)
            size = min(count / (_LEAST_SIZE * pixels), 1.0)
            found[frame] = size * np.minimum(seen, asked).sum() / np.maximum(seen, asked).sum()
    return found


@lru_cache(maxsize=4096)
def _template(mover: Mover) -> tuple[np.ndarray, int]:
    """What a mover looks like in the square, and of how many pixels it is."""
    mask = without_grain((mover_mask(mover) > 0.6)[None])[0]
    return squared(mask), int(mask.sum())

"""Moving scenes as pixels."""

from __future__ import annotations

import numpy as np

from .digits import digit_mask
from .moving import Mover, MovingScene
from .pictures import PICTURE_SIDE
from .render import draw_background, paint
from .shapes import shape_mask


def mover_mask(mover: Mover) -> np.ndarray:
    """Coverage of an object inside its own square, float32 [pixels, pixels]."""
    if mover.sample >= 0:
        return digit_mask(mover.sample, mover.pixels, mover.slant, mover.turn)
    return shape_mask(mover.kind, mover.pixels)


def render_frames(scene: MovingScene, frames: int, first: int = 0) -> np.ndarray:
    """Frames `first` to `first + frames - 1` as uint8 [frames, 64, 64, 3] RGB; the background's grain stays as it is.

    Raises ValueError for no frames and for frames before the first.
    """
    if frames < 1 or first < 0:
        raise ValueError(f"frames: expected at least 1 from frame 0 on, got {frames} from frame {first} on")
    ground = draw_background(scene.background, PICTURE_SIDE)
    drawn = np.empty((frames, *ground.shape), dtype=np.uint8)
    for number, frame in enumerate(range(first, first + frames)):
        canvas = ground.copy()
        for mover in scene.movers:
            paint(canvas, mover_mask(mover), "plain", mover.tint, *mover.at(frame))
        drawn[number] = np.clip(canvas, 0, 255)
    return drawn

"""Motion, shape and likeness read off rendered or generated frames by their colors alone, without any model.

`track` and `agreement` read a whole video and the way that each object goes; `likeness` reads single frames, wherever their
objects are by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from mmspec.zoo.world.glyphs import shape_mask
from mmspec.zoo.world.render import thing_mask
from mmspec.zoo.world.scene import COLORS, SHAPES, TONES
from mmspec.zoo.world.video import DIRECTIONS, STEADY, Mover

LEAST_PIXELS = 16  # of an object's color in a frame, else it is not seen there
STILL = 0.6  # pixels a frame; what moves less along an axis does not move along it
_FARTHEST = 80.0  # from a color's name, in RGB, where a pixel still has it
_SIDE = 24  # of the square in which shapes are compared


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One color over F frames. mask: bool [F, H, W], its pixels.   place: float64 [F, 2], their mean (x, y), NaN where there
    are fewer than LEAST_PIXELS."""

    mask: np.ndarray
    place: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        """bool [F]."""
        return ~np.isnan(self.place[:, 0])


def track(frames: np.ndarray, color: str) -> Track:
    """Where `color`, a name of words.COLORS, is in frames uint8 [F, H, W, 3]; of the world's colors and background tones it
    must be the nearest. Raises ValueError for another array or color."""
    if color not in COLORS or frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(f"frames: expected uint8 [F, H, W, 3] and one of {', '.join(COLORS)}, got {frames.dtype} "
                         f"{frames.shape} and {color!r}; convert them")  # fmt: skip
    own = tuple(COLORS).index(color)
    palette = np.array([*COLORS.values(), *TONES.values()], dtype=np.float32)
    pixels = frames.astype(np.float32)
    away = np.square(palette).sum(-1) - 2 * (pixels @ palette.T)  # squared, up to what all colors share
    near = np.square(pixels - palette[own]).sum(-1) <= _FARTHEST**2
    mask = without_grain((away.argmin(-1) == own) & near)
    place = np.full((len(frames), 2), np.nan)
    for frame, part in enumerate(mask):
        rows, columns = part.nonzero()
        if len(rows) >= LEAST_PIXELS:
            place[frame] = columns.mean(), rows.mean()
    return Track(mask, place)


def without_grain(mask: np.ndarray) -> np.ndarray:
    """bool [F, H, W] without pixels that have fewer than three neighbours: grain may have any color, but alone."""
    rows, columns = mask.shape[1:]
    wide = np.pad(mask, ((0, 0), (1, 1), (1, 1))).astype(np.int8)
    around = sum(wide[:, down : down + rows, right : right + columns] for down in range(3) for right in range(3))
    return mask & (around >= 4)


def direction_of(seen: Track, first: int = 0, steps: int = STEADY) -> str | None:
    """Which way it goes over `steps` steps from frame `first` on, a key of DIRECTIONS; None where it stands still or is not
    seen in all of them. Along each axis the median step decides."""
    places = seen.place[first : first + steps + 1]
    if len(places) < 2 or np.isnan(places).any():
        return None
    step = np.median(np.diff(places, axis=0), axis=0)
    signs = tuple(int(np.sign(value)) if abs(value) >= STILL else 0 for value in step)
    return next((name for name, own in DIRECTIONS.items() if own == signs), None)


def shape_of(seen: Track) -> str | None:
    """The shape whose mask is nearest on average over all frames, None where it is never seen. Digits are not told apart."""
    found = [squared(part) for part in seen.mask[seen.seen]]
    if not found:
        return None
    names, templates = _templates()
    away = np.abs(np.mean(found, axis=0) - templates).mean((1, 2))
    return names[int(away.argmin())]


def squared(mask: np.ndarray) -> np.ndarray:
    """What lies in a mask's bounding box, grown to a square: float32 [_SIDE, _SIDE]."""
    rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
    part = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(np.float32)
    side = max(part.shape)
    spare = [(side - size) // 2 for size in part.shape]
    whole = np.zeros((side, side), dtype=np.float32)
    whole[spare[0] : spare[0] + part.shape[0], spare[1] : spare[1] + part.shape[1]] = part
    return np.asarray(Image.fromarray(whole).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))


@lru_cache(maxsize=1)
def _templates() -> tuple[tuple[str, ...], np.ndarray]:
    # as small as movers are: what is drawn and what it is compared with lose the same corners
    drawn = without_grain(np.stack([shape_mask(shape, 20) > 0.6 for shape in SHAPES]))
    return SHAPES, np.stack([squared(mask) for mask in drawn])


def agreement(frames: np.ndarray, named: Iterable[tuple[str, str, str]]) -> float:
    """How much of what a prompt names is in frames uint8 [F, H, W, 3], in 0..1: of each object (kind, color, direction) the
    share of frames in which its color is seen, whether it goes that way at first, and for shapes whether it is that one.

    named: from `named_movers`. 0 where it names nothing.
    """
    found = [value for _, value in marks(frames, named)]
    return float(np.mean(found)) if found else 0.0


def marks(frames: np.ndarray, named: Iterable[tuple[str, str, str]]) -> list[tuple[str, float]]:
    """The parts of `agreement` as ("seen", "direction" or "shape", 0..1), object by object."""
    found = []
    for kind, color, direction in named:
        seen = track(frames, color)
        found += [("seen", float(seen.seen.mean())), ("direction", float(direction_of(seen) == direction))]
        if kind in SHAPES:
            found.append(("shape", float(shape_of(seen) == kind)))
    return found


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
    mask = without_grain((thing_mask(mover) > 0.6)[None])[0]
    return squared(mask), int(mask.sum())

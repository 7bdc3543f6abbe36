"""Motion, shape and likeness of objects in frames, measured by their colors alone, without a model.

`track` and `agreement` read a whole video and the motion of each object. `likeness` reads single frames, wherever the
objects are.
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

LEAST_PIXELS = 16  # least pixels of an object's color in a frame in which it is seen
STILL = 0.6  # pixels per frame; slower motion along an axis counts as none
_FARTHEST = 80.0  # largest RGB distance of a pixel from its named color
_SIDE = 24  # side of the square in which shapes are compared


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """The pixels and the position of a color over F frames."""

    mask: np.ndarray  # bool [F, H, W]
    place: np.ndarray  # float64 [F, 2], mean (x, y); NaN below LEAST_PIXELS

    @property
    def seen(self) -> np.ndarray:
        """bool [F], whether the color is seen in each frame."""
        return ~np.isnan(self.place[:, 0])


def track(frames: np.ndarray, color: str) -> Track:
    """Track a color of COLORS through frames uint8 [F, H, W, 3]. A pixel has the color if no other color or background
    tone of the world is nearer."""
    if color not in COLORS or frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise ValueError(
            f"frames: expected uint8 [F, H, W, 3] and one of {', '.join(COLORS)}, got {frames.dtype} "
            f"{frames.shape} and {color!r}; convert them"
        )
    own = tuple(COLORS).index(color)
    palette = np.array([*COLORS.values(), *TONES.values()], dtype=np.float32)
    pixels = frames.astype(np.float32)
    away = np.square(palette).sum(-1) - 2 * (
        pixels @ palette.T
    )  # squared distances, up to a term that all colors share
    near = np.square(pixels - palette[own]).sum(-1) <= _FARTHEST**2
    mask = without_grain((away.argmin(-1) == own) & near)
    place = np.full((len(frames), 2), np.nan)
    for frame, part in enumerate(mask):
        rows, columns = part.nonzero()
        if len(rows) >= LEAST_PIXELS:
            place[frame] = columns.mean(), rows.mean()
    return Track(mask, place)


def without_grain(mask: np.ndarray) -> np.ndarray:
    """Return bool [F, H, W] without pixels that have fewer than three neighbours, since pixels of grain are isolated."""
    rows, columns = mask.shape[1:]
    wide = np.pad(mask, ((0, 0), (1, 1), (1, 1))).astype(np.int8)
    around = sum(wide[:, down : down + rows, right : right + columns] for down in range(3) for right in range(3))
    return mask & (around >= 4)


def direction_of(seen: Track, first: int = 0, steps: int = STEADY) -> str | None:
    """Return a key of DIRECTIONS, by the median step along each axis; None where the object stands still or is not seen
    in all frames."""
    places = seen.place[first : first + steps + 1]
    if len(places) < 2 or np.isnan(places).any():
        return None
    step = np.median(np.diff(places, axis=0), axis=0)
    signs = tuple(int(np.sign(value)) if abs(value) >= STILL else 0 for value in step)
    return next((name for name, own in DIRECTIONS.items() if own == signs), None)


def shape_of(seen: Track) -> str | None:
    """Return the shape whose mask is nearest on average, None where it is never seen. Digits are not distinguished."""
    squares = [squared(part) for part in seen.mask[seen.seen]]
    if not squares:
        return None
    names, templates = _templates()
    away = np.abs(np.mean(squares, axis=0) - templates).mean((1, 2))
    return names[int(away.argmin())]


def squared(mask: np.ndarray) -> np.ndarray:
    """Return the content of a mask's bounding box, grown to a square: float32 [_SIDE, _SIDE]."""
    rows, columns = mask.any(1).nonzero()[0], mask.any(0).nonzero()[0]
    part = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(np.float32)
    side = max(part.shape)
    spare = [(side - size) // 2 for size in part.shape]
    whole = np.zeros((side, side), dtype=np.float32)
    whole[spare[0] : spare[0] + part.shape[0], spare[1] : spare[1] + part.shape[1]] = part
    return np.asarray(Image.fromarray(whole).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))


@lru_cache(maxsize=1)
def _templates() -> tuple[tuple[str, ...], np.ndarray]:
    # at the size of movers, so that templates and drawn shapes lose the same corners
    drawn = without_grain(np.stack([shape_mask(shape, 20) > 0.6 for shape in SHAPES]))
    return SHAPES, np.stack([squared(mask) for mask in drawn])


def agreement(frames: np.ndarray, named: Iterable[tuple[str, str, str]]) -> float:
    """Return how much of a prompt, (kind, color, direction) by object, frames uint8 [F, H, W, 3] show: a mean in 0..1,
    0 without objects. For each object, these are the share of frames in which its color is seen, whether its first
    direction is right, and for shapes whether the shape is right."""
    values = [value for _, value in marks(frames, named)]
    return float(np.mean(values)) if values else 0.0


def marks(frames: np.ndarray, named: Iterable[tuple[str, str, str]]) -> list[tuple[str, float]]:
    """Return the parts of `agreement` as ("seen", "direction" or "shape", 0..1), object by object."""
    parts = []
    for kind, color, direction in named:
        seen = track(frames, color)
        parts += [("seen", float(seen.seen.mean())), ("direction", float(direction_of(seen) == direction))]
        if kind in SHAPES:
            parts.append(("shape", float(shape_of(seen) == kind)))
    return parts


_LEAST_SIZE = 0.6  # as a share of the object's pixels; a smaller area lowers the likeness


def likeness(frames: np.ndarray, movers: Sequence[Mover]) -> np.ndarray:
    """Return float64 [F] in 0..1, the likeness of frames uint8 [F, H, W, 3] to movers, wherever these are: the mean
    over the movers of the overlap between the pixels of their color and their shape, both scaled to the same square; 0
    where the color is not seen."""
    if not movers:
        raise ValueError("movers: expected at least one object, got none; name an object")
    return np.mean([_overlap(track(frames, mover.color).mask, mover) for mover in movers], axis=0)


def _overlap(masks: np.ndarray, mover: Mover) -> np.ndarray:
    template, pixels = _template(mover)
    overlaps = np.zeros(len(masks))
    for frame, mask in enumerate(masks):
        if (count := int(mask.sum())) >= LEAST_PIXELS:
            seen = squared(mask)
            size = min(count / (_LEAST_SIZE * pixels), 1.0)
            overlaps[frame] = size * np.minimum(seen, template).sum() / np.maximum(seen, template).sum()
    return overlaps


@lru_cache(maxsize=4096)
def _template(mover: Mover) -> tuple[np.ndarray, int]:
    """Return the mask of a mover in the square, and its number of pixels."""
    mask = without_grain((thing_mask(mover) > 0.6)[None])[0]
    return squared(mask), int(mask.sum())

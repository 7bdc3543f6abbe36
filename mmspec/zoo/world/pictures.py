"""Pictures for image generation: one or two plain objects on 64x64 pixels, each a pure function of its seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .render import draw_background, paint
from .scene import EVAL_START, Background, is_eval_seed, jitter, pick, sample_background
from .shapes import shape_mask
from .words import COLORS, SHAPES

PICTURE_SIDE = 64
HELD_OUT = EVAL_START + (1 << 22)  # first seed of the pictures that trainings and benches measure on
TWO_SHARE = 0.4
PATTERNED_SHARE = 0.2
PLACES = ("top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right")
CLASSES = len(SHAPES) * len(COLORS)

_ALONE = {"small": (30, 36), "large": (38, 44)}  # pixels of an object's square, both ends included
_PAIRED = {"small": (20, 23), "large": (25, 28)}
_STOPS = ((0.05, 0.2), (0.4, 0.6), (0.8, 0.95))  # share of the free room before an object at left, middle and right
_LAYOUTS = ((3, 5), (1, 7), (0, 8), (2, 6))  # places of two objects: beside, above, and the two diagonals


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a picture; `x` and `y` are its top-left pixel, `pixels` the side of the square it fills."""

    shape: str
    color: str
    size: str
    texture: str
    place: str
    pixels: int
    x: int
    y: int
    tint: tuple[int, int, int]

    @property
    def label(self) -> int:
        """Index of the shape and color among the 64 classes."""
        return SHAPES.index(self.shape) * len(COLORS) + tuple(COLORS).index(self.color)


@dataclass(frozen=True, slots=True)
class Picture:
    """A background and one or two objects that do not overlap and differ in shape or color, in reading order."""

    seed: int
    background: Background
    items: tuple[Item, ...]


def class_names() -> tuple[str, ...]:
    """The 64 classes, shape by shape: "red circle", "green circle", ..."""
    return tuple(f"{color} {shape}" for shape in SHAPES for color in COLORS)


def sample_picture(seed: int) -> Picture:
    """Draw the picture of `seed`; raises ValueError outside scene.TRAIN_SEEDS and scene.EVAL_SEEDS."""
    is_eval_seed(seed)
    rng = np.random.default_rng((seed, 64))
    background = sample_background(rng)
    if rng.random() >= TWO_SHARE:
        return Picture(seed, background, (_item(rng, int(rng.integers(CLASSES)), int(rng.integers(len(PLACES)))),))
    labels = rng.choice(CLASSES, size=2, replace=False)
    places = _LAYOUTS[int(rng.integers(len(_LAYOUTS)))]
    items = tuple(_item(rng, int(label), place, paired=True) for label, place in zip(labels, places, strict=True))
    return Picture(seed, background, items)


def class_picture(label: int, seed: int) -> Picture:
    """One object of class `label`, the rest drawn from `seed`; raises ValueError for a label outside 0..63."""
    if not 0 <= label < CLASSES:
        raise ValueError(f"label: expected a class from 0 to {CLASSES - 1}, got {label}; see class_names()")
    is_eval_seed(seed)
    rng = np.random.default_rng((seed, 65, label))
    background = sample_background(rng)
    return Picture(seed, background, (_item(rng, label, int(rng.integers(len(PLACES)))),))


def _item(rng: np.random.Generator, label: int, place: int, paired: bool = False) -> Item:
    shape, color = SHAPES[label // len(COLORS)], tuple(COLORS)[label % len(COLORS)]
    size = pick(rng, ("small", "large"))
    least, most = (_PAIRED if paired else _ALONE)[size]
    pixels = int(rng.integers(least, most + 1))
    texture = pick(rng, ("striped", "dotted")) if rng.random() < PATTERNED_SHARE else "plain"
    y, x = (_offset(rng, stop, pixels, paired) for stop in divmod(place, 3))
    return Item(shape, color, size, texture, PLACES[place], pixels, x, y, jitter(rng, COLORS[color], 10))


def _offset(rng: np.random.Generator, stop: int, pixels: int, paired: bool) -> int:
    if paired and stop != 1:  # each object keeps to its half
        half = PICTURE_SIDE // 2
        return int(rng.integers(half - pixels + 1)) + (half if stop == 2 else 0)
    low, high = _STOPS[stop]
    return round((PICTURE_SIDE - pixels) * rng.uniform(low, high))


def render_picture(picture: Picture) -> np.ndarray:
    """The picture as uint8 [64, 64, 3] RGB."""
    canvas = draw_background(picture.background, PICTURE_SIDE)
    for item in picture.items:
        paint(canvas, shape_mask(item.shape, item.pixels), item.texture, item.tint, item.x, item.y)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def low_res(array: np.ndarray) -> np.ndarray:
    """Half the side by means of 2x2 boxes: uint8 [..., H, W, 3] -> uint8 [..., H/2, W/2, 3]."""
    *lead, rows, columns, channels = array.shape
    boxes = array.reshape(*lead, rows // 2, 2, columns // 2, 2, channels)
    return np.rint(boxes.mean(axis=(-4, -2), dtype=np.float32)).astype(np.uint8)

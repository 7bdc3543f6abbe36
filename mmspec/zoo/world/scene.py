"""The vocabulary of the world and its scenes, each a pure function of its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mmspec.zoo.world.glyphs import digit_samples

Value = TypeVar("Value")
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "ring", "heart")
DIGITS = tuple("0123456789")
KINDS = SHAPES + DIGITS

COLORS = {
    "red": (226, 44, 44),
    "green": (48, 178, 66),
    "blue": (62, 112, 244),
    "yellow": (244, 222, 56),
    "orange": (246, 138, 26),
    "purple": (166, 76, 222),
    "cyan": (70, 218, 226),
    "white": (244, 244, 244),
}
SIZES = {"small": 18, "medium": 23, "large": 29}  # pixels of the square an object fills
TEXTURES = ("plain", "striped", "dotted")

TONES = {
    "charcoal": (38, 38, 42),
    "gray": (104, 104, 106),
    "brown": (88, 62, 44),
    "navy": (24, 34, 78),
    "olive": (72, 78, 38),
    "plum": (72, 38, 66),
}
BACKDROPS = ("smooth", "grainy", "striped", "checkered", "cloudy")

IMAGE_SIDE = 96
GRID = 3
CELL = IMAGE_SIDE // GRID


EVAL_START = 1 << 31
TRAIN_SEEDS = range(0, EVAL_START)
EVAL_SEEDS = range(EVAL_START, 1 << 32)


@dataclass(frozen=True, slots=True)
class SceneObject:
    """A shape or a handwritten digit in a cell of the 3x3 grid."""

    cell: int  # in reading order
    kind: str
    color: str
    size: str
    texture: str
    x: int  # left pixel
    y: int  # top pixel
    tint: tuple[int, int, int]  # the color as drawn, RGB
    sample: int  # index of the handwritten sample; -1 for a shape
    slant: int  # shear of a handwritten sample, -2..2
    turn: int  # rotation of a handwritten sample, -2..2

    @property
    def is_digit(self) -> bool:
        return self.sample >= 0

    @property
    def pixels(self) -> int:
        return SIZES[self.size]


@dataclass(frozen=True, slots=True)
class Background:
    tone: str
    texture: str
    tint: tuple[int, int, int]  # the tone as drawn, RGB
    phase: int  # seed of its noise and pattern


@dataclass(frozen=True, slots=True)
class Scene:
    """A background and its objects in reading order."""

    seed: int
    background: Background
    things: tuple[SceneObject, ...]


@dataclass(frozen=True, slots=True)
class SceneConfig:
    least: int = 2  # objects
    most: int = 6
    digit_share: float = 0.35  # probability that an object is a digit

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= GRID * GRID:
            raise ValueError(f"expected 1 <= least <= most <= 9, got {self.least} and {self.most}, change the counts")
        if not 0.0 <= self.digit_share <= 1.0:
            raise ValueError(f"expected digit_share in 0..1, got {self.digit_share}, pass a probability")


def is_eval_seed(seed: int) -> bool:
    if seed in TRAIN_SEEDS:
        return False
    if seed in EVAL_SEEDS:
        return True
    raise ValueError(f"expected a seed from 0 to {EVAL_SEEDS[-1]}, got {seed}, use TRAIN_SEEDS or EVAL_SEEDS")


def sample_scene(seed: int, config: SceneConfig = SceneConfig()) -> Scene:
    """Sample the scene of a seed. Scenes of evaluation seeds show handwritten samples that no training scene shows."""
    evaluation = is_eval_seed(seed)
    rng = np.random.default_rng(seed)
    count = int(rng.integers(config.least, config.most + 1))
    cells = sorted(int(c) for c in rng.permutation(GRID * GRID)[:count])
    things = tuple(_sample_object(rng, cell, config.digit_share, evaluation) for cell in cells)
    return Scene(seed=seed, background=sample_background(rng), things=things)


def sample_background(rng: np.random.Generator) -> Background:
    """Return a background with a uniformly random tone and texture."""
    tone = pick(rng, tuple(TONES))
    return Background(
        tone=tone, texture=pick(rng, BACKDROPS), tint=jitter(rng, TONES[tone], 8), phase=int(rng.integers(1 << 30))
    )


def _sample_object(rng: np.random.Generator, cell: int, digit_share: float, evaluation: bool) -> SceneObject:
    color, size = pick(rng, tuple(COLORS)), pick(rng, tuple(SIZES))
    if rng.random() < digit_share:
        kind, texture = pick(rng, DIGITS), "plain"
        sample = pick(rng, digit_samples(int(kind), evaluation))
    else:
        kind, texture, sample = pick(rng, SHAPES), pick(rng, TEXTURES), -1
    slant, turn = (int(v) for v in rng.integers(-2, 3, size=2))
    slack = CELL - SIZES[size]
    left, top = (int(v) for v in rng.integers(0, slack + 1, size=2))
    row, column = divmod(cell, GRID)
    return SceneObject(
        cell=cell,
        kind=kind,
        color=color,
        size=size,
        texture=texture,
        x=column * CELL + left,
        y=row * CELL + top,
        tint=jitter(rng, COLORS[color], 10),
        sample=sample,
        slant=slant,
        turn=turn,
    )


def pick(rng: np.random.Generator, values: Sequence[Value]) -> Value:
    return values[int(rng.integers(len(values)))]


def jitter(rng: np.random.Generator, color: tuple[int, int, int], spread: int) -> tuple[int, int, int]:
    """Return a color with every channel moved by at most `spread`."""
    moved = np.clip(np.asarray(color) + rng.integers(-spread, spread + 1, size=3), 0, 255)
    return int(moved[0]), int(moved[1]), int(moved[2])

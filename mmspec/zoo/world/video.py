"""Scenes for video generation: one or two objects that keep their velocity and bounce off the edges, and their frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmspec.zoo.world.glyphs import digit_samples
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE
from mmspec.zoo.world.render import draw_background, paint, thing_mask
from mmspec.zoo.world.scene import (
    COLORS,
    DIGITS,
    EVAL_START,
    KINDS,
    SHAPES,
    Background,
    is_eval_seed,
    jitter,
    pick,
    sample_background,
)

# the first direction of an object, as signs of its steps to the right and down
DIRECTIONS = {
    "left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1),
    "up left": (-1, -1), "up right": (1, -1), "down left": (-1, 1), "down right": (1, 1),
}  # fmt: skip
SPEEDS = {"slow": (1, 2), "fast": (4, 5)}  # pixels per frame along each axis of motion, both ends included
STEADY = 3  # steps before the first bounce, so that the direction in the prompt is visible
LOOKS = len(KINDS) * len(COLORS)
TWO_SHARE = 0.4
DIGIT_SHARE = 0.25
HELD_OUT = EVAL_START + (1 << 23)  # first seed of held-out scenes

_PIXELS = (17, 23)  # of an object's square, both ends included
_HALF = IMAGE_SCENE_SIDE // 2
# two objects move along the same axis, each in its half of the picture, so that they never meet
_ALONG = {"across": ("left", "right"), "upright": ("up", "down")}


@dataclass(frozen=True, slots=True)
class Mover:
    """A moving object: a shape or a handwritten digit."""

    kind: str
    color: str
    direction: str  # its first direction, a key of DIRECTIONS
    speed: str  # a key of SPEEDS
    pixels: int  # side of the square that it fills
    x: int  # left pixel of the square in frame 0
    y: int  # top pixel of the square in frame 0
    dx: int  # pixels per frame to the right before the first bounce
    dy: int  # pixels per frame down before the first bounce
    tint: tuple[int, int, int]  # the color as drawn, RGB
    sample: int  # index of the handwritten sample; -1 for a shape
    slant: int  # shear of a handwritten sample
    turn: int

    @property
    def look(self) -> int:
        """Index of kind and color among the LOOKS."""
        return KINDS.index(self.kind) * len(COLORS) + tuple(COLORS).index(self.color)

    @property
    def room(self) -> int:
        """The largest `x` and `y`."""
        return IMAGE_SCENE_SIDE - self.pixels

    def at(self, frame: int) -> tuple[int, int]:
        """Return the top-left pixel (x, y) in a frame."""
        return _folded(self.x + self.dx * frame, self.room), _folded(self.y + self.dy * frame, self.room)

    def heading(self, frame: int) -> str:
        """Return the direction after a frame, a key of DIRECTIONS."""
        turned = (-1 if gone // self.room % 2 else 1 for gone in self._gone(frame))
        signs = tuple(int(np.sign(step)) * turn for step, turn in zip((self.dx, self.dy), turned, strict=True))
        return next(name for name, own in DIRECTIONS.items() if own == signs)

    def bounces(self, frames: int) -> list[tuple[int, str]]:
        """Return every bounce within `frames` frames: the first frame that shows it, and the edge ("left", "top", ...)."""
        bounces = []
        for frame in range(1, frames):
            passed = zip(self._gone(frame - 1), self._gone(frame), (self.dx, self.dy), _EDGES, strict=True)
            for before, now, step, edges in passed:
                edge = -(-now // self.room) - 1  # edges left behind, without an edge that it still touches
                if edge > max(-(-before // self.room) - 1, 0):
                    bounces.append((frame, edges[(step > 0) == (edge % 2 == 1)]))
        return bounces

    def _gone(self, frame: int) -> tuple[int, int]:
        """Return the distance along x and y from the edge behind its start, as if there were no edges."""
        starts = ((self.x, self.dx), (self.y, self.dy))
        return tuple((at if step > 0 else self.room - at) + abs(step) * frame for at, step in starts)


_EDGES = (("left", "right"), ("top", "bottom"))


@dataclass(frozen=True, slots=True)
class VideoScene:
    """A fixed background and one or two movers of different colors that never overlap."""

    seed: int
    background: Background
    movers: tuple[Mover, ...]


def sample_video_scene(seed: int) -> VideoScene:
    """Scenes of evaluation seeds show handwritten samples that no training scene shows. Two movers go left or right, in
    the upper and the lower half, or up or down side by side."""
    evaluation = is_eval_seed(seed)
    rng = np.random.default_rng((seed, 67))
    background = sample_background(rng)
    if rng.random() >= TWO_SHARE:
        color = pick(rng, tuple(COLORS))
        return VideoScene(seed, background, (_mover(rng, color, pick(rng, tuple(DIRECTIONS)), evaluation),))
    ways = _ALONG[pick(rng, tuple(_ALONG))]
    colors = rng.permutation(len(COLORS))[:2]
    movers = tuple(
        _mover(rng, tuple(COLORS)[int(color)], pick(rng, ways), evaluation, half) for half, color in enumerate(colors)
    )
    return VideoScene(seed, background, movers)


def _mover(rng: np.random.Generator, color: str, direction: str, evaluation: bool, half: int | None = None) -> Mover:
    sample = -1
    if rng.random() < DIGIT_SHARE:
        kind = pick(rng, DIGITS)
        sample = pick(rng, digit_samples(int(kind), evaluation))
    else:
        kind = pick(rng, SHAPES)
    slant, turn = (int(v) for v in rng.integers(-2, 3, size=2))
    pixels = int(rng.integers(_PIXELS[0], _PIXELS[1] + 1))
    speed = pick(rng, tuple(SPEEDS))
    least, most = SPEEDS[speed]
    dx, dy = (sign * int(rng.integers(least, most + 1)) for sign in DIRECTIONS[direction])
    x, y = (_start(rng, step, pixels, half) for step in (dx, dy))
    return Mover(
        kind, color, direction, speed, pixels, x, y, dx, dy, jitter(rng, COLORS[color], 10), sample, slant, turn
    )


def _start(rng: np.random.Generator, step: int, pixels: int, half: int | None) -> int:
    """Return the position along an axis: STEADY steps or more from the edge ahead, or in its half without motion."""
    room, ahead = IMAGE_SCENE_SIDE - pixels, STEADY * abs(step)
    if step:
        free = int(rng.integers(room - ahead + 1))
        return free if step > 0 else free + ahead
    if half is None:
        return int(rng.integers(room + 1))
    return int(rng.integers(_HALF - pixels + 1)) + half * _HALF


def _folded(at: int, room: int) -> int:
    """Return a position reflected at 0 and `room` until it is between them."""
    at %= 2 * room
    return min(at, 2 * room - at)


def render_frames(scene: VideoScene, frames: int, first: int = 0) -> np.ndarray:
    """Return frames `first` to `first + frames - 1` as uint8 [frames, 64, 64, 3] RGB, with fixed background grain."""
    if frames < 1 or first < 0:
        raise ValueError(f"frames: expected at least 1 from frame 0 on, got {frames} from frame {first} on")
    ground = draw_background(scene.background, IMAGE_SCENE_SIDE)
    drawn = np.empty((frames, *ground.shape), dtype=np.uint8)
    for number, frame in enumerate(range(first, first + frames)):
        canvas = ground.copy()
        for mover in scene.movers:
            paint(canvas, thing_mask(mover), "plain", mover.tint, *mover.at(frame))
        drawn[number] = np.clip(canvas, 0, 255)
    return drawn

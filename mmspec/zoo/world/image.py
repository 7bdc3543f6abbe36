"""Scenes for image generation, with one or two objects on 64x64 pixels, and prompts that name every color and shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from einops import rearrange

from mmspec.zoo.world.glyphs import shape_mask
from mmspec.zoo.world.language import GROUNDS, chance, choose, on_ground, with_article, word_tokenizer, words_of
from mmspec.zoo.world.render import draw_background, paint
from mmspec.zoo.world.scene import (
    BACKDROPS,
    COLORS,
    EVAL_START,
    SHAPES,
    TONES,
    Background,
    is_eval_seed,
    jitter,
    pick,
    sample_background,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


IMAGE_SCENE_SIDE = 64
HELD_OUT = EVAL_START + (1 << 22)  # first seed of held-out pictures
TWO_SHARE = 0.4
PATTERNED_SHARE = 0.2
PLACES = ("top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right")
CLASSES = len(SHAPES) * len(COLORS)

_ALONE = {"small": (30, 36), "large": (38, 44)}  # pixels of an object's square, both ends included
_PAIRED = {"small": (20, 23), "large": (25, 28)}
_STOPS = (
    (0.05, 0.2),
    (0.4, 0.6),
    (0.8, 0.95),
)  # range of an object's offset at left, middle and right, as a share of the free room
_LAYOUTS = ((3, 5), (1, 7), (0, 8), (2, 6))  # places of two objects: beside, above, and the two diagonals


@dataclass(frozen=True, slots=True)
class ImageObject:
    shape: str
    color: str
    size: str  # "small" or "large"
    texture: str
    place: str  # a name in PLACES
    pixels: int  # side of the square that it fills
    x: int  # left pixel of the square
    y: int  # top pixel of the square
    tint: tuple[int, int, int]  # the color as drawn, RGB

    @property
    def label(self) -> int:
        """Index of shape and color among the 64 classes."""
        return SHAPES.index(self.shape) * len(COLORS) + tuple(COLORS).index(self.color)


@dataclass(frozen=True, slots=True)
class ImageScene:
    """A background and one or two objects in reading order, which do not overlap and differ in shape or color."""

    seed: int
    background: Background
    items: tuple[ImageObject, ...]


def class_names() -> tuple[str, ...]:
    """Return the 64 classes, shape by shape: "red circle", "green circle", ..."""
    return tuple(f"{color} {shape}" for shape in SHAPES for color in COLORS)


def sample_image_scene(seed: int) -> ImageScene:
    is_eval_seed(seed)
    rng = np.random.default_rng((seed, 64))
    background = sample_background(rng)
    if rng.random() >= TWO_SHARE:
        return ImageScene(seed, background, (_item(rng, int(rng.integers(CLASSES)), int(rng.integers(len(PLACES)))),))
    labels = rng.choice(CLASSES, size=2, replace=False)
    places = pick(rng, _LAYOUTS)
    items = tuple(_item(rng, int(label), place, paired=True) for label, place in zip(labels, places, strict=True))
    return ImageScene(seed, background, items)


def class_image_scene(label: int, seed: int) -> ImageScene:
    """Sample a picture with an object of class `label` (0..63); everything else depends on `seed`."""
    if not 0 <= label < CLASSES:
        raise ValueError(f"label: expected a class from 0 to {CLASSES - 1}, got {label}; see class_names()")
    is_eval_seed(seed)
    rng = np.random.default_rng((seed, 65, label))
    background = sample_background(rng)
    return ImageScene(seed, background, (_item(rng, label, int(rng.integers(len(PLACES)))),))


def _item(rng: np.random.Generator, label: int, place: int, paired: bool = False) -> ImageObject:
    shape, color = SHAPES[label // len(COLORS)], tuple(COLORS)[label % len(COLORS)]
    size = pick(rng, ("small", "large"))
    least, most = (_PAIRED if paired else _ALONE)[size]
    pixels = int(rng.integers(least, most + 1))
    texture = pick(rng, ("striped", "dotted")) if rng.random() < PATTERNED_SHARE else "plain"
    y, x = (_offset(rng, stop, pixels, paired) for stop in divmod(place, 3))
    return ImageObject(shape, color, size, texture, PLACES[place], pixels, x, y, jitter(rng, COLORS[color], 10))


def _offset(rng: np.random.Generator, stop: int, pixels: int, paired: bool) -> int:
    if paired and stop != 1:  # each object stays in its half
        half = IMAGE_SCENE_SIDE // 2
        return int(rng.integers(half - pixels + 1)) + (half if stop == 2 else 0)
    low, high = _STOPS[stop]
    return round((IMAGE_SCENE_SIDE - pixels) * rng.uniform(low, high))


def render_image_scene(picture: ImageScene) -> np.ndarray:
    """Return the picture as uint8 [64, 64, 3] RGB."""
    canvas = draw_background(picture.background, IMAGE_SCENE_SIDE)
    for item in picture.items:
        paint(canvas, shape_mask(item.shape, item.pixels), item.texture, item.tint, item.x, item.y)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def low_res(array: np.ndarray) -> np.ndarray:
    """Halve the side by means of 2x2 boxes: uint8 [..., H, W, 3] -> uint8 [..., H/2, W/2, 3]."""
    boxes = rearrange(array, "... (h i) (w j) c -> ... h i w j c", i=2, j=2)
    return np.rint(boxes.mean(axis=(-4, -2), dtype=np.float32)).astype(np.uint8)


LONGEST = 32  # tokens of a prompt, the end token included

_OPENERS = ("", "", "a picture of ", "an image of ", "a drawing of ", "there is ")
_CORNERS = ("in the {} corner", "in the {}", "at the {}")
_SIDES = ("at the {}", "on the {}")
_MIDDLES = ("in the middle", "in the center")
_RELATIONS = {("left", "right"): ("to the left of", "left of", "beside"), ("top", "bottom"): ("above", "over")}
_EXTRAS = ("plain", "small", "large", "dotted", "and", "with", "below", "under", "right", "of", "picture", "image", ",")


def image_prompt(picture: ImageScene, seed: int) -> str:
    """Return a prompt that names the color and shape of every object, color right before shape: "a large red star in
    the top left corner". Size, texture, place and background are optional."""
    rng = np.random.default_rng((picture.seed, seed, 66))
    text = choose(rng, _OPENERS, 0.4) + _objects(rng, picture.items)
    return text + (on_ground(rng, picture.background) if chance(rng, 0.75) else "")


def _objects(rng: np.random.Generator, items: tuple[ImageObject, ...]) -> str:
    phrases = [_noun(rng, item) for item in items]
    if len(items) == 1:
        return phrases[0] + (f" {_place(rng, items[0].place)}" if chance(rng, 0.7) else "")
    relations = _RELATIONS.get((items[0].place, items[1].place))
    if relations is not None and chance(rng, 0.5):
        return f"{phrases[0]} {choose(rng, relations)} {phrases[1]}"
    if chance(rng, 0.7):
        phrases = [f"{phrase} {_place(rng, item.place)}" for phrase, item in zip(phrases, items, strict=True)]
    if chance(rng, 0.25):
        phrases.reverse()
    return " and ".join(phrases)


def _noun(rng: np.random.Generator, item: ImageObject) -> str:
    words = [item.size] if chance(rng, 0.6) else []
    if item.texture != "plain" and chance(rng, 0.8):
        words.append(item.texture)
    return with_article(" ".join([*words, item.color, item.shape]))


def _place(rng: np.random.Generator, place: str) -> str:
    if place == "middle":
        return choose(rng, _MIDDLES)
    return choose(rng, _CORNERS if " " in place else _SIDES).format(place)


def named_objects(prompt: str) -> list[tuple[str, str]]:
    """Return the (shape, color) of every object that a prompt names: a color word right before a shape word."""
    words = prompt.lower().replace(",", " ").split()
    return [(b, a) for a, b in zip(words, words[1:], strict=False) if a in COLORS and b in SHAPES]


def image_prompt_words() -> list[str]:
    relations = [name for names in _RELATIONS.values() for name in names]
    phrases = [*_OPENERS, *_CORNERS, *_SIDES, *_MIDDLES, *GROUNDS, *relations]
    phrases += [*SHAPES, *COLORS, *TONES, *BACKDROPS, *_EXTRAS, "top left", "bottom right", "middle", "a an"]
    return words_of(phrases)


def image_prompt_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per word and a final end token, as T5's: pad is 0, end 1, an unknown word 2."""
    return word_tokenizer(image_prompt_words(), LONGEST)

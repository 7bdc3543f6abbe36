"""The names of the world: everything a scene can hold and a caption can say about it."""

from __future__ import annotations

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

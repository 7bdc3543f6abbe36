"""Letters of documents: digits, small letters and marks as 5x7 bitmaps, one in every 8x8 cell of a page."""

from __future__ import annotations

from functools import cache

import numpy as np

CELL = 8  # pixels of a cell's side: a letter, what parts it from the next one, and room to move the page
WIDTH, HEIGHT = 5, 7

# seven rows of each letter from the top, five bits a row as two hexadecimal digits
_ROWS = {
    "0": "0e11131519110e", "1": "040c040404040e", "2": "0e11010204081f", "3": "1f02040201110e", "4": "02060a121f0202",
    "5": "1f101e0101110e", "6": "0608101e11110e", "7": "1f010204080808", "8": "0e11110e11110e", "9": "0e11110f01020c",
    "a": "00000e010f110f", "b": "10101619111e00", "c": "00000e1010110e", "d": "01010d1311110f", "e": "00000e111f100e",
    "f": "0609081c080808", "g": "000f11110f010e", "h": "10101619111111", "i": "04000c0404040e", "j": "0200060202120c",
    "k": "10101214181412", "l": "0c04040404040e", "m": "00001a15151111", "n": "00001619111111", "o": "00000e1111110e",
    "p": "00001e111e1010", "q": "00000d130f0101", "r": "00001619101010", "s": "00000e100e011e", "t": "08081c08080906",
    "u": "0000111111130d", "v": "00001111110a04", "w": "0000111115150a", "x": "0000110a040a11", "y": "000011110f010e",
    "z": "00001f0204081f", ".": "00000000000c0c", ",": "000000000c0408",
}  # fmt: skip
LETTERS = "".join(_ROWS)


@cache
def letter_mask(letter: str) -> np.ndarray:
    """Which pixels of a letter are inked, bool [7, 5]; none of a space.

    Raises ValueError for what documents have no letter of.
    """
    if letter == " ":
        return np.zeros((HEIGHT, WIDTH), dtype=bool)
    if letter not in _ROWS:
        raise ValueError(f"letter: expected one of {LETTERS!r} or a space, got {letter!r}; write it with those")
    rows = np.frombuffer(bytes.fromhex(_ROWS[letter]), dtype=np.uint8)
    return (rows[:, None] >> np.arange(WIDTH)[::-1]) & 1 == 1

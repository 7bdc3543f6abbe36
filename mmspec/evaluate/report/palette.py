"""The colours and marks of methods: a method looks the same in every figure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BLACK, GREY, GRID = "#000000", "#9A9A9A", "#D9D9D9"
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#C45A95", "#C98500", "#3FA0DA"
BROWN, PURPLE, OLIVE, TEAL, RED, INDIGO = "#8C564B", "#6A3D9A", "#7A7A00", "#117A7A", "#B2182B", "#3B3B98"
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BROWN, PURPLE, OLIVE, TEAL, RED, INDIGO)
MARKS = "os^DvPX<>hdp8H"
PLAIN = r"plain|mmspec plain|plain AR|ar|none|transformers|target alone|target"
# the first pattern that occurs in a method's name decides; a rule comes before the decoding whose drafts it judges
METHODS: tuple[tuple[str, str, str], ...] = (
    (r"LANTERN\+\+", PURPLE, "D"),
    (r"LANTERN", GREEN, "o"),
    (r"GSD", ORANGE, "v"),
    (r"Cool-?SD|cool", PINK, "P"),
    (r"run-?joint", TEAL, "h"),
    (r"typical", RED, "X"),
    (r"ZipAR", BROWN, "X"),
    (r"SJD", SKY, "s"),
    (r"SCD|PAC|rows", VERMILION, "^"),
    (r"stack|CSpD .*(\+|schedules)|all schedules", VERMILION, "^"),
    (r"own draws|tolerance|truncate", SKY, "D"),
    (r"CSpD", BLUE, "s"),
    (r"anneal|checkerboard|lazy|schedules|scheduled", GREEN, "o"),
    (r"FLASH, published head", OLIVE, "d"),
    (r"head", PURPLE, "P"),
    (r"small causal", BROWN, "v"),
    (r"SDVG", BLUE, "o"),
    (r"strided", GREEN, "s"),
    (r"random,|random routing", ORANGE, "v"),
    (r"drafter alone|draft", PINK, "X"),
    (r"untrained", GREY, "o"),
    (r"EAGLE with noise", VERMILION, "v"),
    (r"EAGLE without vision", SKY, "o"),
    (r"P-EAGLE|peagle", INDIGO, "d"),
    (r"EAGLE-?3", PURPLE, "P"),
    (r"EAGLE", BLUE, "o"),
    (r"MSD", VERMILION, "s"),
    (r"ViSpec", GREEN, "^"),
    (r"SpecVLM", PINK, "D"),
    (r"DFlash-?2?", BROWN, "X"),
    (r"FLASH", ORANGE, "v"),
    (r"DSpark", RED, "h"),
    (r"Hydra", TEAL, "<"),
    (r"Medusa", INDIGO, ">"),
    (r"MTP", SKY, "d"),
    (r"lookup", OLIVE, "s"),
    (r"recycling", TEAL, "o"),
    (r"small model|small|assisted", INDIGO, "p"),
    (r"MuLo", OLIVE, "<"),
    (r"PJD", INDIGO, ">"),
    (r"auto|goodput", RED, "s"),
)
_KNOWN = tuple((re.compile(rf"(?<![A-Za-z])(?:{text})(?![A-Za-z])", re.IGNORECASE), *look) for text, *look in METHODS)


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn."""

    colour: str  # of its family
    mark: str  # tells methods of one colour apart
    filled: bool = True  # whether the method is exact

    @property
    def dashes(self) -> Any:
        return "-" if self.filled else (0, (4, 1.5))

    def marks(self, size: float = 7) -> dict[str, Any]:
        face = self.colour if self.filled else "white"
        return {"marker": self.mark, "ms": size, "mfc": face, "mec": self.colour, "mew": 1.4, "color": self.colour}


def is_plain(name: str) -> bool:
    return re.fullmatch(PLAIN, name, re.IGNORECASE) is not None


def known(name: str) -> tuple[str, str] | None:
    """Return the colour and the preferred mark of a method of this project; None for other names."""
    return next((look for pattern, *look in _KNOWN if pattern.search(name)), None)


def kind(name: str) -> int:
    """Return the place of a method's family among those of this project, which is also how well known it is."""
    return next((place for place, (pattern, *_) in enumerate(_KNOWN) if pattern.search(name)), len(_KNOWN))


def looks_of(methods: Iterable[tuple[str, bool]]) -> dict[str, Look]:
    """Return the looks of methods, given with whether they are exact; no two share both colour and mark. Names from
    elsewhere take colours that the figure does not use."""
    methods = list(dict.fromkeys(methods))
    styles: dict[str, Look] = {}
    used = {look[0] for name, _ in methods if (look := known(name))}
    spare = [colour for colour in COLOURS if colour not in used] or list(COLOURS)
    others: dict[str, str] = {}
    for name, exact in methods:
        if is_plain(name):
            styles[name] = Look(BLACK, "*")
            continue
        base = name.removesuffix(", goodput")
        look = known(base) or (others.setdefault(base, spare[len(others) % len(spare)]), "o")
        used_marks = {style.mark for style in styles.values() if style.colour == look[0]}
        mark = next((mark for mark in (look[1], *MARKS) if mark not in used_marks), look[1])
        styles[name] = Look(look[0], mark, exact)
    return styles

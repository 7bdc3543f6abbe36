"""Reading captions back: which object a text claims to stand where."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .phrases import POSITIONS
from .scene import Scene
from .words import COLORS, KINDS

_CELL_OF = {name: cell for cell, names in enumerate(POSITIONS) for name in names}
_PLACE = re.compile(r"\b(" + "|".join(sorted(_CELL_OF, key=len, reverse=True)) + r")\b", re.IGNORECASE)
_NAMED = re.compile(rf"\b({'|'.join(COLORS)}) (?:(?:handwritten|digit|number) )?({'|'.join(KINDS)})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """One object as a caption names it; `cell` counts the 3x3 grid in reading order."""

    cell: int
    color: str
    kind: str


def parse_caption(text: str) -> list[Claim]:
    """The objects `text` places, in order of mention; sentences that pair no object with a position are skipped."""
    claims: list[Claim] = []
    for sentence in re.split(r"\.(?:\s|$)", text):
        places, named = _PLACE.findall(sentence), _NAMED.findall(sentence)
        if len(places) != len(named):
            continue
        for place, (color, kind) in zip(places, named, strict=True):
            claim = Claim(_CELL_OF[place.lower()], color.lower(), kind.lower())
            if claim not in claims:
                claims.append(claim)
    return claims


def truth(scene: Scene) -> list[Claim]:
    """What a perfect caption of `scene` claims, in reading order."""
    return [Claim(thing.cell, thing.color, thing.kind) for thing in scene.things]

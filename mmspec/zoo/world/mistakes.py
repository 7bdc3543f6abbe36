"""The wrong words of a caption, by the scene that it describes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from mmspec.zoo.world.captions import CELL_OF, NAMED, PLACE
from mmspec.zoo.world.scene import Scene

_SENTENCE = re.compile(r"[^.]+(?:\.(?!\s|$)[^.]*)*")
Span = tuple[int, int]


def wrong_words(text: str, scene: Scene) -> list[Span]:
    """Return first character and end of the colors, kinds and positions in a caption that the scene contradicts, in
    order. Only sentences with a position for each named object are checked, as in `parse_caption`. An object at an
    occupied position is compared with the object there. At an empty position the position is wrong, and color and kind
    are wrong too unless the scene has such an object elsewhere."""
    there = {thing.cell: (thing.color, thing.kind) for thing in scene.things}
    wrong: list[Span] = []
    for sentence in _SENTENCE.finditer(text):
        first, end = sentence.span()
        places = list(PLACE.finditer(text, first, end))
        named = list(NAMED.finditer(text, first, end))
        if len(places) != len(named):
            continue
        for place, name in zip(places, named, strict=True):
            claims = name[1].lower(), name[2].lower()
            cell = CELL_OF[place[0].lower()]
            if cell in there:
                wrong += [name.span(part + 1) for part in range(2) if claims[part] != there[cell][part]]
                continue
            wrong.append(place.span())
            if claims not in there.values():
                wrong += [name.span(1), name.span(2)]
    return sorted(wrong)


def right_tokens(decode: Callable[[Sequence[int]], str], ids: Sequence[int], scene: Scene) -> list[bool]:
    """Return whether each token of a caption is right, that is, reaches into no wrong word. The decoded text of the
    first ids has to begin that of all."""
    ends = [len(decode(ids[: count + 1])) for count in range(len(ids))]
    wrong = wrong_words(decode(ids), scene)
    starts = [0, *ends[:-1]]
    return [
        not any(start < last and first < end for first, last in wrong) for start, end in zip(starts, ends, strict=True)
    ]

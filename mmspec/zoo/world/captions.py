"""Captions of several sentences in many phrasings, pure functions of (scene, seed), and the claims of a caption."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from mmspec.zoo.world.language import (
    COUNTS,
    POSITIONS,
    capital,
    chance,
    choose,
    count_tokens,
    noun_phrase,
    plural,
    position_name,
    short_name,
    with_article,
)
from mmspec.zoo.world.scene import COLORS, GRID, KINDS, SIZES, Scene, SceneObject

SHORTEST, LONGEST = 60, 160

REQUESTS = (
    "Describe this picture in detail.",
    "Describe the image.",
    "What do you see in this picture?",
    "Write a caption for this image.",
    "What is shown here?",
    "Tell me everything about the picture.",
    "Please describe the scene.",
    "Caption this image.",
)
REVERSED_REQUESTS = ("Describe the picture from the bottom up.", "Start at the bottom and describe the image.")
BRIEF_REQUESTS = ("Describe the picture briefly.", "List the objects.", "What is in the image, in short?")
IMAGINE_REQUESTS = ("Imagine a picture and describe it.", "Make up a scene.", "Describe a picture without seeing one.")

Turn = tuple[str, str]  # the texts of the user and of the assistant


def full_turn(rng: np.random.Generator, scene: Scene, seed: int) -> Turn:
    return choose(rng, REQUESTS, 0.4), caption(scene, seed)


def reversed_turn(rng: np.random.Generator, scene: Scene, seed: int, skew: float = 0.7) -> Turn:
    """Return a request for a caption from the bottom up, and its answer."""
    return choose(rng, REVERSED_REQUESTS, skew), caption(scene, seed, reverse=True)


def brief_turn(rng: np.random.Generator, scene: Scene, seed: int) -> Turn:
    return choose(rng, BRIEF_REQUESTS, 0.4), brief_caption(scene, seed)


def imagined_turn(rng: np.random.Generator, scene: Scene, seed: int) -> Turn:
    return choose(rng, IMAGINE_REQUESTS, 0.4), caption(scene, seed)


def caption(scene: Scene, seed: int, reverse: bool = False) -> str:
    """Return a full caption of 60 to 160 tokens, which names every object with its position, color and kind."""
    rng = np.random.default_rng((scene.seed, seed, 1))
    things = list(scene.things)
    if reverse or chance(rng, 0.12):
        things.reverse()
    body = _object_sentences(rng, things)
    background_first = chance(rng, 0.3)
    opening = _opening(rng, scene, background_first)
    ending = [] if background_first else [_background(rng, scene)]
    ending.append(choose(rng, _CLOSINGS))
    fixed = count_tokens(" ".join([opening, *body, *ending]))
    extras: list[str] = []
    wish = fixed + int(rng.integers(0, 45))
    for sentence in _extras(rng, scene):
        length = count_tokens(sentence)
        if fixed + length > LONGEST or (fixed >= SHORTEST and fixed + length > wish):
            continue
        extras.append(sentence)
        fixed += length
    for sentence in _FILLERS:
        if fixed < SHORTEST:
            extras.append(sentence)
            fixed += count_tokens(sentence)
    return " ".join([opening, *body, *extras, *ending])


def brief_caption(scene: Scene, seed: int) -> str:
    """Return a sentence that lists the objects in reading order."""
    rng = np.random.default_rng((scene.seed, seed, 2))
    names = [with_article(short_name(thing)) for thing in scene.things]
    listed = ", ".join(names[:-1]) + " and " + names[-1]
    start = choose(rng, ("The picture shows", "There is", "I see", "This is a picture of"))
    return f"{start} {listed}."


def _opening(rng: np.random.Generator, scene: Scene, background: bool) -> str:
    count = plural(len(scene.things), "object")
    ground = f"a {scene.background.texture} {scene.background.tone} background"
    if background:
        return choose(
            rng,
            (
                f"The picture shows {count} on {ground}.",
                f"There are {count} on {ground}.",
                f"On {ground} there are {count}.",
                f"This is an image of {count} on {ground}.",
            ),
        )
    return choose(
        rng,
        (
            f"There are {count} in this picture.",
            f"The picture shows {count}.",
            f"I can see {count} here.",
            f"This image contains {count}.",
            f"In this scene there are {count}.",
            f"Here we see {count}.",
        ),
    )


def _object_sentences(rng: np.random.Generator, things: list[SceneObject]) -> list[str]:
    sentences, index = [], 0
    while index < len(things):
        take = 2 if index + 1 < len(things) and chance(rng, 0.3) else 1
        pair = things[index : index + take]
        sentences.append(_pair_sentence(rng, *pair) if take == 2 else _one_sentence(rng, pair[0], index > 0))
        if take == 1 and chance(rng, 0.2):
            sentences += _detail(rng, pair[0], sentences[-1])
        index += take
    return sentences


def _one_sentence(rng: np.random.Generator, thing: SceneObject, later: bool) -> str:
    where, what = position_name(rng, thing.cell), noun_phrase(rng, thing)
    forms = (
        f"in the {where} there is {what}",
        f"the {where} holds {what}",
        f"at the {where} we see {what}",
        f"{what} is in the {where}",
        f"in the {where} you can find {what}",
        f"{what} sits at the {where}",
        f"looking at the {where}, there is {what}",
    )
    start = choose(rng, ("", "", "", "then ", "next, ", "also, ")) if later else ""
    return capital(start + choose(rng, forms)) + "."


def _pair_sentence(rng: np.random.Generator, first: SceneObject, second: SceneObject) -> str:
    where, there = position_name(rng, first.cell), position_name(rng, second.cell)
    what, other = noun_phrase(rng, first), noun_phrase(rng, second)
    return capital(
        choose(
            rng,
            (
                f"in the {where} there is {what}, and in the {there} there is {other}.",
                f"the {where} holds {what} and the {there} holds {other}.",
                f"{what} is in the {where}, while {other} is in the {there}.",
                f"at the {where} we see {what}, followed by {other} at the {there}.",
            ),
        )
    )


def _detail(rng: np.random.Generator, thing: SceneObject, said: str) -> list[str]:
    """Return a sentence on a property that the text `said` does not mention, if any."""
    forms = [] if thing.size in said else [f"This one is {thing.size}.", f"It is {thing.size}."]
    if thing.is_digit and "handwritten" not in said:
        forms.append("It looks handwritten.")
    elif not thing.is_digit and thing.texture not in said and " with " not in said:
        forms += [f"It is {thing.texture}.", f"Its surface is {thing.texture}."]
    return [choose(rng, forms)] if forms else []


def _background(rng: np.random.Generator, scene: Scene) -> str:
    tone, texture = scene.background.tone, scene.background.texture
    return choose(
        rng,
        (
            f"The background is {tone} and {texture}.",
            f"Everything lies on a {texture} {tone} background.",
            f"Behind them the background is {texture} and {tone}.",
            f"All of this is set against a {texture} {tone} background.",
        ),
    )


_CLOSINGS = (
    "Nothing else can be seen.",
    "That is all.",
    "The other places are empty.",
    "There are no more objects.",
    "The rest of the picture is empty.",
)


_FILLERS = ("Each object stays inside its own place.", "The picture is small and square.")


def _extras(rng: np.random.Generator, scene: Scene) -> list[str]:
    """Return optional sentences about relations, sizes and counts in random order, none of which names a position."""
    candidates = [_relation(rng, a, b) for a, b in _pairs(rng, scene)]
    candidates += [_digit_count(rng, scene), _color_count(rng, scene), _largest(rng, scene)]
    sentences = [sentence for sentence in candidates if sentence]
    return [sentences[int(i)] for i in rng.permutation(len(sentences))]


def _pairs(rng: np.random.Generator, scene: Scene) -> list[tuple[SceneObject, SceneObject]]:
    names = [short_name(thing) for thing in scene.things]
    unique = [thing for thing in scene.things if names.count(short_name(thing)) == 1]
    if len(unique) < 2:
        return []
    drawn = (rng.permutation(len(unique))[:2] for _ in range(3))
    return [(unique[int(i)], unique[int(j)]) for i, j in drawn]


def _relation(rng: np.random.Generator, a: SceneObject, b: SceneObject) -> str:
    (row, column), (other_row, other_column) = divmod(a.cell, GRID), divmod(b.cell, GRID)
    facts = []
    if row != other_row:
        facts.append("above" if row < other_row else "below")
    if column != other_column:
        facts.append("to the left of" if column < other_column else "to the right of")
    sizes = list(SIZES)
    if a.size != b.size:
        facts.append("larger than" if sizes.index(a.size) > sizes.index(b.size) else "smaller than")
    first, second = short_name(a), short_name(b)
    forms = [f"The {first} is {fact} the {second}." for fact in facts]
    if a.color == b.color:
        forms.append(f"The {first} has the same color as the {second}.")
    return choose(rng, forms)


def _digit_count(rng: np.random.Generator, scene: Scene) -> str:
    count = sum(thing.is_digit for thing in scene.things)
    if count == 0:
        return choose(rng, ("None of the objects is a digit.", "There are no digits."))
    verb = "is" if count == 1 else "are"
    return choose(
        rng, (f"In total there {verb} {plural(count, 'digit')}.", f"{capital(plural(count, 'digit'))} can be counted.")
    )


def _color_count(rng: np.random.Generator, scene: Scene) -> str:
    colors = [thing.color for thing in scene.things]
    most = max(COLORS, key=colors.count)
    count = colors.count(most)
    if count == 1:
        return "Every object has its own color."
    number = COUNTS[count]
    return choose(rng, (f"{capital(number)} of the objects are {most}.", f"The color {most} appears {number} times."))


def _largest(rng: np.random.Generator, scene: Scene) -> str:
    large = [thing for thing in scene.things if thing.size == "large"]
    if len(large) == 1:
        return choose(rng, ("Only one object is large.", f"The largest object is the {short_name(large[0])}."))
    number = COUNTS[len(large)]
    return choose(rng, (f"{capital(number)} objects are large.", f"There are {number} large objects."))


CELL_OF = {name: cell for cell, names in enumerate(POSITIONS) for name in names}
PLACE = re.compile(r"\b(" + "|".join(sorted(CELL_OF, key=len, reverse=True)) + r")\b", re.IGNORECASE)
NAMED = re.compile(rf"\b({'|'.join(COLORS)}) (?:(?:handwritten|digit|number) )?({'|'.join(KINDS)})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """An object as a caption names it; `cell` counts the 3x3 grid in reading order."""

    cell: int
    color: str
    kind: str


def parse_caption(text: str) -> list[Claim]:
    """Return the objects in a caption, in order of mention, except in sentences without a position for each object."""
    claims: list[Claim] = []
    for sentence in re.split(r"\.(?:\s|$)", text):
        places, named = PLACE.findall(sentence), NAMED.findall(sentence)
        if len(places) != len(named):
            continue
        for place, (color, kind) in zip(places, named, strict=True):
            claim = Claim(CELL_OF[place.lower()], color.lower(), kind.lower())
            if claim not in claims:
                claims.append(claim)
    return claims


def truth(scene: Scene) -> list[Claim]:
    """Return the claims of a perfect caption of a scene, in reading order."""
    return [Claim(thing.cell, thing.color, thing.kind) for thing in scene.things]

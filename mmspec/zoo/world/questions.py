"""Questions about a scene with their answers, and requests about several pictures; pure functions of (scene, seed)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mmspec.zoo.world.captions import Turn, brief_caption, caption
from mmspec.zoo.world.language import (
    COUNTS,
    POSITIONS,
    choose,
    noun_phrase,
    plural,
    position_name,
    short_name,
    with_article,
)
from mmspec.zoo.world.scene import COLORS, KINDS, Scene, pick

QuestionKind = Literal["color", "shape", "digit", "count", "where", "exists", "background"]
QUESTION_KINDS: tuple[QuestionKind, ...] = get_args(QuestionKind)


@dataclass(frozen=True, slots=True)
class SceneQuestion:
    kind: QuestionKind
    prompt: str
    answer: str
    fact: str  # that a correct answer contains

    @property
    def turn(self) -> Turn:
        return self.prompt, self.answer


def question(scene: Scene, seed: int, kind: QuestionKind | None = None) -> SceneQuestion:
    """Return a question about a scene, of a random kind for None; "digit" becomes "shape" where the scene has no digit."""
    rng = np.random.default_rng((scene.seed, seed, 3))
    kind = kind or pick(rng, QUESTION_KINDS)
    if kind == "digit" and not any(thing.is_digit for thing in scene.things):
        kind = "shape"
    return _MAKERS[kind](rng, scene)


def _color(rng: np.random.Generator, scene: Scene) -> SceneQuestion:
    thing = pick(rng, scene.things)
    where = position_name(rng, thing.cell)
    prompts = [f"What color is the object in the {where}?", f"Which color is at the {where}?"]
    if [other.kind for other in scene.things].count(thing.kind) == 1:
        prompts.append(f"What color is the {thing.kind}?")
    answers = (f"It is {thing.color}.", f"The {thing.kind} is {thing.color}.", f"The color is {thing.color}.")
    return SceneQuestion("color", choose(rng, prompts, 0.0), choose(rng, answers), thing.color)


def _shape(rng: np.random.Generator, scene: Scene) -> SceneQuestion:
    cell = int(rng.integers(len(POSITIONS))) if rng.random() < 0.25 else pick(rng, scene.things).cell
    where = position_name(rng, cell)
    prompt = choose(rng, (f"What is in the {where}?", f"What can you find at the {where}?"), 0.0)
    here = [thing for thing in scene.things if thing.cell == cell]
    if not here:
        return SceneQuestion("shape", prompt, choose(rng, ("Nothing is there.", "That place is empty.")), "empty")
    what = noun_phrase(rng, here[0])
    answer = choose(rng, (f"There is {what}.", f"It is {what}.", f"The {where} holds {what}."))
    return SceneQuestion("shape", prompt, answer, here[0].kind)


def _digit(rng: np.random.Generator, scene: Scene) -> SceneQuestion:
    thing = pick(rng, [thing for thing in scene.things if thing.is_digit])
    where = position_name(rng, thing.cell)
    prompt = choose(rng, (f"Which digit is in the {where}?", f"What number do you read at the {where}?"), 0.0)
    answers = (f"It is {with_article(thing.kind)}.", f"The digit is {with_article(thing.kind)}.")
    return SceneQuestion("digit", prompt, choose(rng, answers), thing.kind)


def _count(rng: np.random.Generator, scene: Scene) -> SceneQuestion:
    topic = int(rng.integers(3))
    if topic == 0:
        noun, count = "object", len(scene.things)
    elif topic == 1:
        noun, count = "digit", sum(thing.is_digit for thing in scene.things)
    else:
        color = pick(rng, scene.things).color if rng.random() < 0.7 else pick(rng, tuple(COLORS))
        noun, count = f"{color} object", sum(thing.color == color for thing in scene.things)
    verb = "is" if count == 1 else "are"
    answer = choose(rng, (f"There {verb} {plural(count, noun)}.", f"I count {plural(count, noun)}."))
    prompt = choose(rng, (f"How many {noun}s are there?", f"Count the {noun}s."), 0.5)
    return SceneQuestion("count", prompt, answer, COUNTS[count])


def _where(rng: np.random.Generator, scene: Scene) -> SceneQuestion:
    thing = pick(rng, scene.things)
    name = short_name(thing)
    cells = [other.cell for other in scene.things if short_name(other) == name]
    places = " and ".join(f"in the {position_name(rng, cell)}" for cell in cells)
    answer = choose(rng, (f"It is {places}.", f"The {name} is {places}.", f"You can find it {places}."))
    prompt = choose(rng, (f"Where is the {name}?", f"Where do you see the {name}?"), 0.5)
    return SceneQuestion("where", prompt, answer, places)


def _exists(rng: np.random.Generator, scene: Scene) -> SceneQuestion:
    thing = pick(rng, scene.things)
    color, kind = thing.color, thing.kind
    if rng.random() < 0.5:  # half of the wrong guesses share the kind, half the color
        if rng.random() < 0.5:
            color = pick(rng, tuple(COLORS))
        else:
            kind = pick(rng, KINDS)
    name = f"{color} {kind}"
    matches = [other for other in scene.things if short_name(other) == name]
    prompt = choose(rng, (f"Is there {with_article(name)}?", f"Do you see {with_article(name)}?"), 0.5)
    if not matches:
        return SceneQuestion("exists", prompt, choose(rng, (f"No, there is no {name}.", "No, there is none.")), "No")
    where = position_name(rng, matches[0].cell)
    answer = choose(rng, (f"Yes, it is in the {where}.", f"Yes, there is one at the {where}."))
    return SceneQuestion("exists", prompt, answer, "Yes")


def _background(rng: np.random.Generator, scene: Scene) -> SceneQuestion:
    tone, texture = scene.background.tone, scene.background.texture
    prompt = choose(rng, ("What does the background look like?", "Describe the background."), 0.5)
    answer = choose(rng, (f"It is {texture} and {tone}.", f"The background is {tone} and {texture}."))
    return SceneQuestion("background", prompt, answer, tone)


_MAKERS = dict(zip(QUESTION_KINDS, (_color, _shape, _digit, _count, _where, _exists, _background), strict=True))


ORDINALS = ("first", "second", "third")
_WHOLE = ("Describe the {} picture.", "What is in the {} picture?")
_BRIEF = ("Describe the {} picture briefly.", "List the objects of the {} image.")


def many_turn(scenes: tuple[Scene, ...], seed: int) -> Turn:
    """Return a prompt about one of `scenes` and its answer: a caption, a short list, or an answered question."""
    rng = np.random.default_rng((scenes[0].seed, seed, 4))
    index = int(rng.integers(len(scenes)))
    style, name = rng.random(), ORDINALS[index]
    if style < 0.4:
        return choose(rng, _WHOLE, 0.5).format(name), caption(scenes[index], seed)
    if style < 0.7:
        return choose(rng, _BRIEF, 0.5).format(name), brief_caption(scenes[index], seed)
    example = question(scenes[index], seed)
    return f"In the {name} picture, {example.prompt[0].lower()}{example.prompt[1:]}", example.answer

"""Prompts of moving scenes, which always name every object's color, kind and direction."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from mmspec.zoo.world.language import GROUNDS, chance, choose, on_ground, with_article, word_tokenizer, words_of
from mmspec.zoo.world.scene import BACKDROPS, COLORS, KINDS, TONES
from mmspec.zoo.world.video import DIRECTIONS, Mover, VideoScene

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LONGEST = 48  # tokens of a prompt, the end token included

_OPENERS = ("", "", "a video of ", "a clip of ", "a scene with ")
_VERBS = ("moves", "goes", "slides", "flies")
_SPEEDS = {"slow": ("slowly", "slowly"), "fast": ("quickly", "fast")}
_DIRECTION_WORDS = {
    "left": ("to the left", "left"),
    "right": ("to the right", "right"),
    "up": ("up", "upwards"),
    "down": ("down", "downwards"),
    "up left": ("up and to the left", "diagonally up and left"),
    "up right": ("up and to the right", "diagonally up and right"),
    "down left": ("down and to the left", "diagonally down and left"),
    "down right": ("down and to the right", "diagonally down and right"),
}
_BOUNCES = ("and bounces off the {} edge", "and bounces back from the {} edge", "until it hits the {} edge")


def video_prompt(scene: VideoScene, seed: int, frames: int = 0) -> str:
    """Return a prompt that names the color, kind and first direction of every object, color right before kind: "a red
    star moves slowly up and to the left". Speed, bounces within `frames` frames, background and order are optional."""
    rng = np.random.default_rng((scene.seed, seed, 68))
    phrases = [_moves(rng, mover, frames) for mover in scene.movers]
    if chance(rng, 0.3):
        phrases.reverse()
    text = choose(rng, _OPENERS, 0.4) + " and ".join(phrases)
    return text + (on_ground(rng, scene.background) if chance(rng, 0.6) else "")


def _moves(rng: np.random.Generator, mover: Mover, frames: int) -> str:
    words = [with_article(f"{mover.color} {mover.kind}"), choose(rng, _VERBS)]
    if chance(rng, 0.6):
        words.append(choose(rng, _SPEEDS[mover.speed]))
    words.append(choose(rng, _DIRECTION_WORDS[mover.direction]))
    bounces = mover.bounces(frames)
    if bounces and chance(rng, 0.6):
        words.append(choose(rng, _BOUNCES).format(bounces[0][1]))
    return " ".join(words)


def named_movers(prompt: str) -> list[tuple[str, str, str]]:
    """Return the (kind, color, direction) of every object that a prompt names, in its order; "" for no direction."""
    text = prompt.lower()
    matches = list(_NAMED.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return [
        (match["kind"], match["color"], _direction_in(text[match.end() : end]))
        for match, end in zip(matches, ends, strict=False)
    ]


_NAMED = re.compile(rf"\b(?P<color>{'|'.join(COLORS)}) (?P<kind>{'|'.join(KINDS)})\b")
_AFTER = re.compile(r"\b(bounc\w*|until|on|in front)\b")


def _direction_in(text: str) -> str:
    words = set(re.findall(r"\b(left|right|up|down)(?:wards)?\b", _AFTER.split(text)[0]))
    return next((name for name in DIRECTIONS if set(name.split()) == words), "")


def video_prompt_words() -> list[str]:
    motions = [way for ways in (*_DIRECTION_WORDS.values(), *_SPEEDS.values()) for way in ways]
    phrases = [
        *_OPENERS,
        *_VERBS,
        *motions,
        *_BOUNCES,
        *GROUNDS,
        *KINDS,
        *COLORS,
        *TONES,
        *BACKDROPS,
        "top bottom a an and",
    ]
    return words_of(phrases)


def video_prompt_tokenizer() -> PreTrainedTokenizerFast:
    """See `image_prompt_tokenizer`."""
    return word_tokenizer(video_prompt_words(), LONGEST)

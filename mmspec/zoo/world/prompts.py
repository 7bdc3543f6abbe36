"""What pictures are asked for with: prompts that always name every object's color and shape, and their tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .phrases import chance, choose, with_article
from .pictures import Item, Picture
from .word_tokenizer import word_tokenizer, words_of
from .words import BACKDROPS, COLORS, SHAPES, TONES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LONGEST = 32  # tokens of a prompt, the end token included

_OPENERS = ("", "", "a picture of ", "an image of ", "a drawing of ", "there is ")
_CORNERS = ("in the {} corner", "in the {}", "at the {}")
_SIDES = ("at the {}", "on the {}")
_MIDDLES = ("in the middle", "in the center")
_GROUNDS = ("on {a} background", "in front of {a} background", "on {plain}")
_RELATIONS = {
    ("left", "right"): ("to the left of", "left of", "beside"),
    ("top", "bottom"): ("above", "over"),
}
_EXTRAS = ("plain", "small", "large", "dotted", "and", "with", "below", "under", "right", "of", "picture", "image", ",")


def prompt_of(picture: Picture, seed: int) -> str:
    """A prompt for `picture`, a pure function of both; size, texture, place and background come and go.

    Color and shape of every object are always named, color right before shape: "a large red star in the top left corner".
    """
    rng = np.random.default_rng((picture.seed, seed, 66))
    text = choose(rng, _OPENERS, 0.4) + _objects(rng, picture.items)
    if chance(rng, 0.75):
        words = [picture.background.tone]
        if picture.background.texture != "smooth" or chance(rng, 0.5):
            words.insert(0, picture.background.texture)
        ground = " ".join(words)
        text += " " + choose(rng, _GROUNDS).format(a=with_article(ground), plain=ground)
    return text


def _objects(rng: np.random.Generator, items: tuple[Item, ...]) -> str:
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


def _noun(rng: np.random.Generator, item: Item) -> str:
    words = [item.size] if chance(rng, 0.6) else []
    if item.texture != "plain" and chance(rng, 0.8):
        words.append(item.texture)
    return with_article(" ".join([*words, item.color, item.shape]))


def _place(rng: np.random.Generator, place: str) -> str:
    if place == "middle":
        return choose(rng, _MIDDLES)
    return choose(rng, _CORNERS if " " in place else _SIDES).format(place)


def named_objects(prompt: str) -> list[tuple[str, str]]:
    """The (shape, color) of every object a prompt names: a color word right before a shape word."""
    words = prompt.lower().replace(",", " ").split()
    return [(b, a) for a, b in zip(words, words[1:], strict=False) if a in COLORS and b in SHAPES]


def prompt_words() -> list[str]:
    """Every word a prompt can hold, sorted."""
    phrases = [
        *_OPENERS,
        *_CORNERS,
        *_SIDES,
        *_MIDDLES,
        *_GROUNDS,
        *(name for names in _RELATIONS.values() for name in names),
    ]
    phrases += [*SHAPES, *COLORS, *TONES, *BACKDROPS, *_EXTRAS, "top left", "bottom right", "middle", "a an"]
    return words_of(phrases)


def prompt_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word with the end token last, as T5 has it; pad is 0, end 1, a word that no prompt holds 2."""
    return word_tokenizer(prompt_words(), LONGEST)

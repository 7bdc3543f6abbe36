"""The language of the world: choices, articles, noun phrases, and tokenizers with whole words as single tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mmspec.zoo.world.scene import Background, SceneObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


POSITIONS = (
    ("top left", "upper left", "top left corner"),
    ("top center", "upper middle"),
    ("top right", "upper right", "top right corner"),
    ("middle left", "center left"),
    ("center", "very middle"),
    ("middle right", "center right"),
    ("bottom left", "lower left", "bottom left corner"),
    ("bottom center", "lower middle"),
    ("bottom right", "lower right", "bottom right corner"),
)
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def choose(rng: np.random.Generator, options: Sequence, skew: float = 0.7):
    """Return the r-th of `options` with weight `1 / r**skew`, since natural text has frequent phrases."""
    if len(options) == 1:
        return options[0]
    edges = np.cumsum(1.0 / np.arange(1, len(options) + 1) ** skew)
    return options[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))]


def chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def with_article(words: str) -> str:
    """Return `words` after `a` or `an`; the digit 8 is read "eight"."""
    return ("an " if words[0] in "aeiou8" else "a ") + words


def capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def position_name(rng: np.random.Generator, cell: int) -> str:
    return choose(rng, POSITIONS[cell], skew=1.2)


def short_name(thing: SceneObject) -> str:
    """Return color and kind, the two words that identify an object: "red star", "blue 7"."""
    return f"{thing.color} {thing.kind}"


def noun_phrase(rng: np.random.Generator, thing: SceneObject, full: bool = False) -> str:
    """Return an indefinite noun phrase with the color before the kind; size and texture are optional."""
    words = [thing.size] if full or chance(rng, 0.7) else []
    tail = ""
    if thing.is_digit:
        words += [thing.color, choose(rng, ("", "", "handwritten", "digit", "number")), thing.kind]
    else:
        show = chance(rng, 0.65 if thing.texture != "plain" else 0.25)
        if show and thing.texture != "plain" and chance(rng, 0.3):
            tail = {"striped": " with stripes", "dotted": " with dots"}[thing.texture]
        elif show:
            words.append(thing.texture)
        words += [thing.color, thing.kind]
    return with_article(" ".join(word for word in words if word)) + tail


GROUNDS = ("on {a} background", "in front of {a} background", "on {plain}")


def on_ground(rng: np.random.Generator, background: Background) -> str:
    words = [background.tone]
    if background.texture != "smooth" or chance(rng, 0.5):
        words.insert(0, background.texture)
    ground = " ".join(words)
    return " " + choose(rng, GROUNDS).format(a=with_article(ground), plain=ground)


def plural(count: int, noun: str) -> str:
    """Return a counted noun: "no stars", "one star", "two stars"."""
    return f"{COUNTS[count]} {noun}{'' if count == 1 else 's'}"


def count_tokens(text: str) -> int:
    """Return the number of words and punctuation marks of a text: its length in tokens of the world's tokenizer."""
    return len(re.findall(r"\w+|[^\w\s]", text))


PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"


def word_tokenizer(words: Sequence[str], longest: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per word and a final end token, as T5's: pad is 0, end 1, an unknown word 2. A
    prompt has at most `longest` tokens, the end token included."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(words),
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        padding_side="right",
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def _tokenizer(words: Sequence[str]) -> Tokenizer:
    vocabulary = {name: index for index, name in enumerate([PAD, EOS, UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, vocabulary[EOS])]
    )
    return tokenizer


def words_of(phrases: Sequence[str]) -> list[str]:
    """Return every word of `phrases`, sorted, without placeholders in braces."""
    return sorted({word for phrase in phrases for word in phrase.split() if not word.startswith("{")})


def word_byte_tokenizer(special: Sequence[str], texts: Iterable[str]) -> Tokenizer:
    """Return a tokenizer of whole words over bytes. The ids are `special` in their order, the 256 bytes, then every
    longer piece of `texts`, sorted. A piece is a word with the space before it. Other words and numbers are spelled in
    bytes, so that every text round-trips."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    words = {piece for text in texts for piece, _ in split.pre_tokenize_str(text)}
    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += sorted(word for word in words if len(word) > 1)
    tokenizer = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer

"""Tokenizers of whole words over an alphabet of bytes: words of the world are one token, every other text encodes too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def word_byte_tokenizer(special: Sequence[str], texts: Iterable[str]) -> Tokenizer:
    """Ids: `special` in their order, the 256 bytes, then every piece of `texts` longer than one, sorted.

    A piece is a word with the space before it; what is not among them, such as a number, is spelled byte by byte, so every
    text decodes back to itself.
    """
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    words = {piece for text in texts for piece, _ in split.pre_tokenize_str(text)}
    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += sorted(word for word in words if len(word) > 1)
    tokenizer = Tokenizer(models.BPE(vocab={n: i for i, n in enumerate(names)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer

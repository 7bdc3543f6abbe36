"""Tokenizers of prompts: one token a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"


def word_tokenizer(words: Sequence[str], longest: int) -> PreTrainedTokenizerFast:
    """One token for each of `words` with the end token last, as T5 has it; pad is 0, end 1, any other word 2.

    longest: tokens of a prompt, the end token included.
    """
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
    """Every word of `phrases`, sorted; what stands in braces is filled in later and is none."""
    return sorted({word for phrase in phrases for word in phrase.split() if not word.startswith("{")})

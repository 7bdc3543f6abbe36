"""Streaming: pieces add up to the text, and each says whether a drafter or the target made it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mmspec.vlm.streaming import TextRuns
from tests.evaluate.tiny_zoo import byte_processor

DRAFTED, OWN = True, False


def feed(text: str, runs: list[tuple[int, int]]) -> list[tuple[str, bool]]:
    """The pieces written for `text` arriving in runs of (length, accepted)."""
    tokenizer = byte_processor().tokenizer
    ids, pieces = tokenizer(text, add_special_tokens=False)["input_ids"], []
    streamer = TextRuns(tokenizer, lambda *piece: pieces.append(piece))
    streamer.put(ids)
    start = 0
    for length, accepted in runs:
        streamer.put_run(ids[start : start + length], accepted)
        start += length
    streamer.end()
    return pieces


def test_pieces_say_who_made_them() -> None:
    pieces = feed(" ab cd", [(1, 0), (3, 2), (2, 2)])
    assert pieces == [("a", DRAFTED), ("b", DRAFTED), (" ", OWN), ("c", DRAFTED), ("d", DRAFTED)]


def test_a_character_of_several_tokens_waits_for_its_last() -> None:
    pieces = feed("é!", [(1, 1), (2, 0)])
    assert pieces == [("é", OWN), ("!", OWN)]


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    assert "".join(text for text, _ in feed("aé", [(2, 1)])) == "a\ufffd"


WORDS = "say ' yes ' now , please . do n't stop , they 've said 's all right ! ok ? I 'm here".split()
PIECES = ["d", "##o", "un", "##able", "n", "'", "t", ".", "!"]


def cleaning_tokenizer() -> hf.PreTrainedTokenizerFast:
    """Joins words with spaces, and removes spaces before signs and contractions once they are complete."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["?", *WORDS])}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", clean_up_tokenization_spaces=True)


def word_pieces() -> hf.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(["?", *PIECES])}, unk_token="?"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=True)
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", clean_up_tokenization_spaces=True)


def sentence_pieces() -> hf.PreTrainedTokenizerFast:
    """A leading space is stripped, and unknown characters are bytes."""
    pieces = ["<unk>", *(f"<0x{n:02X}>" for n in range(256)), "\u2581a", "\u2581", "b", "."]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def bytes_or_piece(tokenizer: hf.PreTrainedTokenizerFast, character: str) -> list[int]:
    if character in "b.":
        return tokenizer.convert_tokens_to_ids([character])
    return tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in character.encode()])


@pytest.mark.parametrize("length", (1, 2, 3))
@pytest.mark.parametrize("make", (cleaning_tokenizer, word_pieces, sentence_pieces, lambda: byte_processor().tokenizer))
def test_what_is_shown_is_the_text_whatever_decoding_changes(make: Callable, length: int) -> None:
    """Random ids: signs and contractions remove spaces, pieces continue words, and bytes are left unfinished."""
    tokenizer = make()
    for seed in range(40):
        choose, shown = Random(seed), []
        if make is sentence_pieces:  # bytes that are no character change the characters beside them
            ids = [i for c in choose.choices("a b.é€😀\n", k=12) for i in bytes_or_piece(tokenizer, c)]
        else:
            ids = choose.choices(range(len(tokenizer)), k=24)
        streamer = TextRuns(tokenizer, lambda text, drafted, shown=shown: shown.append(text))
        for first in range(0, len(ids), length):
            streamer.put_run(ids[first : first + length], 1)
        streamer.end()
        assert "".join(shown) == tokenizer.decode(ids, skip_special_tokens=True).lstrip()


def test_a_stream_goes_on_from_the_common_prefix() -> None:
    """A tokenizer without a word of warning changes shown text: the rest is still shown."""

    class Rewriting:
        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "ab-" + "c" * len(ids) if len(ids) < 3 else "ab+" + "c" * len(ids)

    shown = []
    streamer = TextRuns(Rewriting(), lambda text, drafted: shown.append(text))
    for token in range(4):
        streamer.put_run([token], 0)
    streamer.end()
    assert shown == ["ab-c", "c", "+ccc", "c"]


def test_held_back_text_belongs_to_the_token_that_completed_it() -> None:
    tokenizer, pieces = cleaning_tokenizer(), []
    ids = tokenizer("say ' yes please now")["input_ids"]
    streamer = TextRuns(tokenizer, lambda *piece: pieces.append(piece))
    streamer.put_run(ids[:2], 2)
    streamer.put_run(ids[2:], 0)
    streamer.end()
    assert pieces == [("say", DRAFTED), ("'yes", OWN), (" please now", OWN)]

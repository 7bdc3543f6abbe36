"""Streaming: pieces add up to the text, and each says whether a drafter or the target made it."""

from __future__ import annotations

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

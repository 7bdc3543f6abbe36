"""Requests about documents: own texts of the right size, in the order of a user, and pages that are read again."""

from __future__ import annotations

import pytest

from mmspec.evaluate.vlm.documents import (
    DOCUMENT_REQUESTS,
    PAGES_AGAIN,
    document_requests,
    pages_again,
    text_documents,
)
from mmspec.zoo.world.documents import REQUESTS as TRANSCRIBE
from mmspec.zoo.world.instructions import instruction
from tests.evaluate.vlm.test_real_prompts import runs, texts


def test_texts_have_the_promised_size_and_their_mistakes_are_in_them() -> None:
    assert len(text_documents()) * 3 == DOCUMENT_REQUESTS.most
    for document in text_documents():
        assert 150 <= len(document.text.split()) <= 300
        wrong = document.misspelt
        assert len(wrong.split()) == len(document.text.split())
        changed = sum(a != b for a, b in zip(wrong.split(), document.text.split(), strict=True))
        assert changed == len(document.mistakes)
        assert all(mistake in wrong and mistake not in document.text for _, mistake in document.mistakes)


def test_no_text_shares_a_run_of_words_with_those_of_training() -> None:
    trained = set().union(*(runs(text) for seed in range(600) for text in texts(instruction(seed))))
    for document in text_documents():
        assert not runs(document.text) & trained


def test_a_user_asks_three_times_about_a_document() -> None:
    asked = document_requests(6)
    for document, prompts in zip(text_documents(), (asked[:3], asked[3:]), strict=False):
        assert document.text in prompts[0].text and document.question in prompts[0].text
        assert document.misspelt in prompts[1].text and document.text not in prompts[1].text
        assert document.text in prompts[2].text and document.columns in prompts[2].text
    assert [request.text for request in document_requests(3, seed=1)] == [prompt.text for prompt in asked[3:]]
    for count in (0, 25):
        with pytest.raises(ValueError, match=f"--prompts: expected 1 to 24 about documents, got {count}"):
            document_requests(count)


def test_a_page_is_read_in_every_phrasing_before_the_next() -> None:
    asked = pages_again(4)
    assert [prompt.text for prompt in asked] == [*TRANSCRIBE, TRANSCRIBE[0]]
    shown = [prompt.images[0].tobytes() for prompt in asked]
    assert shown[0] == shown[1] == shown[2] != shown[3]
    assert PAGES_AGAIN.only == "vlm/hybrid"

"""Captions: cleaning, and features with the real tokens last."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.llamagen.captions import CaptionEncoder, clean_caption, to_the_right
from tests.imagegen.llamagen.tiny import text_encoder, word_tokenizer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A red circle on the left.", "a red circle on the left."),
        ("  Two  Dogs,\n running  ", "two dogs, running"),
        ("a cat &amp; a dog <b>playing</b>", "a cat a dog playing"),
        ("see https://example.com/a.jpg a house", "see a house"),
        ("a boat by @someone on www.shop.net", "a boat by on"),
        ("“Quoted” — it’s ‘fine’", "\"quoted\" - it's 'fine"),
        ("photo_of_a_red_car_2020.jpg a red car", "a red car"),
        ("one-two-three-four-five", "one two three four five"),
        ("a poster 1920x1080, free shipping", "a poster"),
        ("<person> holding a hat #12345", "person holding a hat"),
        ("red , blue ; green", "red, blue; green"),
        ("a%20red%20ball", "a red ball"),
        ("", ""),
    ],
)
def test_captions_are_cleaned(text: str, expected: str) -> None:
    assert clean_caption(text) == expected
    assert clean_caption(clean_caption(expected)) == clean_caption(expected)


def test_real_tokens_come_last() -> None:
    features = torch.arange(1.0, 9.0).view(2, 4, 1)
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    turned, real = to_the_right(features, mask)
    assert turned[..., 0].tolist() == [[0, 0, 1, 2], [5, 6, 7, 8]]
    assert real.tolist() == [[False, False, True, True], [True] * 4]


def test_features_are_the_encoders_own() -> None:
    encoder, tokenizer = text_encoder(), word_tokenizer()
    features, mask = CaptionEncoder(encoder, tokenizer, 6)(["A RED   circle", "the left , the right . a square"])
    assert features.shape == (2, 6, 8) and mask.sum(-1).tolist() == [4, 6]
    alone = encoder(**tokenizer("a red circle", return_tensors="pt").to("cpu")).last_hidden_state[0]
    torch.testing.assert_close(features[0, 2:], alone)
    assert not features[0, :2].any()


def test_texts_may_be_left_as_they_are() -> None:
    encoder, tokenizer = text_encoder(), word_tokenizer()
    one, two = (CaptionEncoder(encoder, tokenizer, 6, cleaned=cleaned)(["A red"])[0] for cleaned in (False, True))
    assert not torch.equal(one, two)
    with pytest.raises(ValueError, match="length: expected at least 1"):
        CaptionEncoder(encoder, tokenizer, 0)


@pytest.mark.parametrize("text", ("zebra", "Ein Zebra!", "斑马", "zebra , ."))
def test_a_text_without_a_known_word_is_refused(text: str) -> None:
    captions = CaptionEncoder(text_encoder(), word_tokenizer(), 6)
    with pytest.raises(ValueError, match=f"prompts: expected words this model knows, got none in '{text}'"):
        captions(["a red circle", text])
    captions([f"{text} circle", ""])

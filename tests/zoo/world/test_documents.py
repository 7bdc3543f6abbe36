"""Documents: pages that are pure functions of their seeds, legible, and judged word by word."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from mmspec.zoo.world.documents import COLUMNS, LINES, page, page_array, sample_document, words_right
from mmspec.zoo.world.glyphs import LETTER_CELL, LETTER_HEIGHT, LETTER_WIDTH, LETTERS, letter_mask
from mmspec.zoo.world.scene import EVAL_START

SEEDS = [*range(60), *range(EVAL_START, EVAL_START + 60)]


def read_back(document) -> tuple[str, ...]:
    """Every cell's letter, found by the bitmap that differs least from what is dark in it."""
    pixels = page_array(document).astype(float).mean(-1)
    middle = (np.mean(document.paper) + np.mean(document.ink)) / 2
    lines = []
    for row in range(len(document.lines)):
        found = ""
        for column in range(COLUMNS):
            top, left = row * LETTER_CELL + document.y, column * LETTER_CELL + document.x
            dark = pixels[top : top + LETTER_HEIGHT, left : left + LETTER_WIDTH] < middle
            found += min(" " + LETTERS, key=lambda letter: int((letter_mask(letter) != dark).sum()))
        lines.append(found.rstrip())
    return tuple(lines)


def test_a_document_is_a_function_of_its_seed() -> None:
    for seed in SEEDS[::10]:
        one, two = sample_document(seed), sample_document(seed)
        assert one == two and np.array_equal(page_array(one), page_array(two))
    assert len({sample_document(seed).text for seed in SEEDS}) == len(SEEDS)
    with pytest.raises(ValueError, match="TRAIN_SEEDS or EVAL_SEEDS"):
        sample_document(-1)


@pytest.mark.whole
def test_the_page_says_the_text_and_can_be_read_from_its_pixels() -> None:
    for document in map(sample_document, SEEDS):
        assert 1 <= len(document.lines) <= LINES and max(map(len, document.lines)) <= COLUMNS
        assert " ".join(document.lines).split() == document.text.split()
        assert read_back(document) == document.lines
        assert page(document).size == (96, 96) and page(document).mode == "RGB"


def test_no_two_letters_look_alike() -> None:
    for combination, two in combinations(" " + LETTERS, 2):
        assert (letter_mask(combination) != letter_mask(two)).sum() >= 2, (combination, two)
    with pytest.raises(ValueError, match="expected one of"):
        letter_mask("ß")


def test_words_right_counts_words_in_order_against_the_longer_text() -> None:
    document = sample_document(3)
    words = document.text.split()
    assert words_right(document.text, document) == 1 and words_right(" ".join(words), document) == 1
    assert words_right("", document) == 0 and words_right("nothing of it", document) == 0
    assert words_right(" ".join(words[1:]), document) == pytest.approx(1 - 1 / len(words))
    assert words_right(document.text + " and more", document) == pytest.approx(len(words) / (len(words) + 2))
    swapped = [words[1], words[0], *words[2:]]
    assert words[0] != words[1] and words_right(" ".join(swapped), document) == pytest.approx(1 - 1 / len(words))

"""How a run begins: what a drafter that is started from keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmspec.vlm.drafters.drafter_names import new_drafter
from mmspec.vlm.drafters.eagle3 import Eagle3
from mmspec.vlm.training.run_setup import fit_vocabulary, initial_drafter
from tests.vlm.tiny import VOCAB, tiny

OLD, NEW = [[5, 9, 9, 20], [7, 5]], [[5, 31, 31], [40, 9]]


def saved(folder: Path) -> Eagle3:
    """A drafter of the words of OLD, with rows no other has."""
    drafter = new_drafter("eagle3", tiny("llava")).with_answers(OLD, most=4)
    torch.nn.init.normal_(drafter.head.weight)
    drafter.save_pretrained(folder)
    return drafter


def test_a_drafter_that_goes_on_keeps_its_words_and_their_rows(tmp_path: Path) -> None:
    was = saved(tmp_path)
    begun = initial_drafter("eagle3", tiny("llava"), {}, tmp_path)
    found, share = fit_vocabulary(begun, NEW, fresh=False)
    assert found.head.ids.tolist() == [5, 7, 9, 20] and share == pytest.approx(2 / 5)
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in was.state_dict().items())


def test_a_fresh_drafter_takes_its_words_from_the_answers() -> None:
    found, share = fit_vocabulary(initial_drafter("eagle3", tiny("llava"), {"draft_vocab_size": 4}), NEW, fresh=True)
    assert found.head.ids.tolist() == [5, 9, 31, 40] and share == 1
    assert torch.equal(found.head.weight, tiny("llava").lm_head.weight[found.head.ids])


def test_answers_without_a_word_of_the_drafter_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match="start: expected a drafter with tokens of these answers"):
        fit_vocabulary(initial_drafter("eagle3", tiny("llava"), {}, tmp_path), [[31, 40]], fresh=False)


def test_a_whole_vocabulary_stays_whole(tmp_path: Path) -> None:
    new_drafter("eagle3", tiny("llava")).save_pretrained(tmp_path)
    found, share = fit_vocabulary(initial_drafter("eagle3", tiny("llava"), {}, tmp_path), NEW, fresh=False)
    assert not found.head.reduced and found.head.weight.shape[0] == VOCAB and share == 1
    other = initial_drafter("msd", tiny("llava"), {})
    assert fit_vocabulary(other, NEW, fresh=True) == (other, 1.0)

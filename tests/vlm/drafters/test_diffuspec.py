"""DiffuSpec: a block's path with n-grams changes nothing but the speed, and its drafts are picked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.core.drafting.lattice import LatticeSearch
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.drafters.diffuspec import DiffuSpec
from mmspec.vlm.drafters.from_text import drafter_from_text
from mmspec.vlm.drafters.ngram_laws import LawTable
from tests.vlm.drafters.test_merged import assert_rows_alone_and_together
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import prompt, tiny

BLOCKS = ("dspark", *(pytest.param(name, marks=pytest.mark.whole) for name in ("dflash", "peagle")))


@pytest.mark.parametrize("name", BLOCKS)
def test_greedy_words_are_the_targets_own(name: str) -> None:
    inputs, watched = prompt("llava", 2, "start", 3), Watched(DiffuSpec(make(name)))
    options = dict(inputs, max_new_tokens=16, do_sample=False)
    assert torch.equal(mmspec.generate(tiny("llava"), drafter=watched, **options), tiny("llava").generate(**options))
    assert {seen.draft.law.kind for seen in watched.rounds if seen.draft.tree.nodes > 1} == {"onehot"}


def test_the_drafter_alone_is_its_own_chain_of_likeliest_tokens() -> None:
    options = dict(prompt("llava", 1, "start", 2), max_new_tokens=14, do_sample=False, return_dict=True)
    block = make("dflash")
    chain = block.with_shape(Chain(FixedLength(block.config.drafted)))
    for drafter, other in (
        (DiffuSpec(block, LatticeSearch(share=1.0)), chain),
        (DiffuSpec(block, LatticeSearch(beam=1, share=1.0)), chain),
    ):
        one, two = (mmspec.generate(tiny("llava"), drafter=own, **options) for own in (drafter, other))
        assert torch.equal(one.sequences, two.sequences) and one.stats.accepted == two.stats.accepted


@pytest.mark.whole
@pytest.mark.parametrize("name", ("dspark", "dflash"))
def test_a_row_alone_drafts_what_it_drafts_in_a_batch(name: str) -> None:
    assert_rows_alone_and_together(DiffuSpec(make(name)))


def test_ngrams_of_the_target_lead_the_path() -> None:
    """An untrained drafter knows nothing; with the target's n-grams of the same request the second run accepts more."""
    options = dict(prompt("llama", images=0, batch=1), max_new_tokens=24, do_sample=False, return_dict=True)
    search, block, table = LatticeSearch(share=0.0, mass=1.0, most=200, beam=4), make("dflash"), LawTable(2, 1)
    drafter = DiffuSpec(block, search, table)
    first, second = (mmspec.generate(tiny("llama"), drafter=drafter, **options) for _ in range(2))
    assert torch.equal(first.sequences, second.sequences)
    assert second.stats.target_passes < first.stats.target_passes


def test_it_has_a_text_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    make("dspark").save_pretrained(tmp_path / "block")
    made = drafter_from_text(f"diffuspec:beam=5,share=0.7@{tmp_path / 'block'}", tiny("llava"))
    assert (
        isinstance(made, DiffuSpec) and made.search == LatticeSearch(5, share=0.7) and made.name == "diffuspec(dspark)"
    )
    with pytest.raises(ValueError, match="drafter: expected a drafter of blocks.*Eagle"):
        DiffuSpec(make("eagle"))
    with pytest.raises(ValueError, match="table: expected max_ngram 2"):
        DiffuSpec(make("dspark"), table=LawTable())

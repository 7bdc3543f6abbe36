"""Prompt lookup: what it copies, and what it never copies."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.vlm.drafters.prompt_lookup import NgramIndex, PromptLookup
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import IMAGE, PAD, VIDEO, prompt, tiny

BARRED = frozenset({97, 98})


def index_of(ids: list[int], **settings: int) -> NgramIndex:
    index = NgramIndex(PromptLookup(**settings), BARRED, 101)
    index.extend(ids)
    return index


def test_the_longest_match_wins_then_the_most_recent() -> None:
    assert index_of([1, 2, 3, 4, 9, 3, 5, 2, 3]).continuation(2) == [4, 9]
    assert index_of([3, 4, 9, 3, 5, 6, 3]).continuation(2) == [5, 6]


def test_the_end_of_a_row_does_not_find_itself() -> None:
    assert index_of([1, 2, 3]).continuation(4) == []
    assert index_of([7, 7]).continuation(4) == [7]


def test_short_matches_are_left_out_below_min_ngram() -> None:
    assert index_of([3, 5, 6, 3], min_ngram=2).continuation(2) == []
    assert index_of([2, 3, 5, 2, 3], min_ngram=2).continuation(2) == [5, 2]


def test_growing_by_pieces_equals_growing_at_once() -> None:
    ids = torch.randint(0, 6, (80,)).tolist()
    pieces = index_of([])
    for start in range(0, 80, 3):
        pieces.extend(ids[start : start + 3])
        assert pieces.continuation(5) == index_of(ids[: start + 3]).continuation(5)


def test_copies_stop_before_placeholders_and_matches_never_span_them() -> None:
    assert index_of([1, 2, 3, 97, 97, 4, 1, 2]).continuation(5) == [3]
    assert index_of([1, 2, 97, 97, 4, 1, 2]).continuation(5) == []
    assert index_of([97, 2, 3, 97, 2]).continuation(5) == [3]
    assert index_of([4, 97, 5, 4, 97]).continuation(5) == []


def test_ids_beyond_the_targets_vocabulary_are_never_copied() -> None:
    assert index_of([1, 2, 101, 3, 1]).continuation(5) == [2]


@pytest.mark.parametrize("batch", (1, 4))
@pytest.mark.parametrize("kind", ("llava", "onevision", "qwen2_5_vl"))
def test_a_prompt_whose_end_repeats_before_the_image_drafts_no_placeholder(kind: str, batch: int) -> None:
    model, inputs = tiny(kind), prompt(kind, images=1, where="echo", batch=batch)
    drafter = Watched(PromptLookup())
    out = mmspec.generate(model, drafter=drafter, max_new_tokens=12, do_sample=False, **inputs)
    assert torch.equal(out, model.generate(**inputs, max_new_tokens=12, do_sample=False))
    assert not {IMAGE, VIDEO, PAD} & {i for r in drafter.rounds for row in range(batch) for i in r.drafted(row)}


def test_the_echo_itself_is_found_and_not_followed_into_the_image() -> None:
    index = index_of(prompt("llava", images=1, where="echo")["input_ids"][0].tolist())
    assert index.ids[index.ends[tuple(index.ids[-3:])][-1]] == IMAGE
    assert IMAGE not in index.continuation(5)


def test_a_shorter_match_replaces_a_match_that_leads_into_an_image() -> None:
    assert index_of([2, 6, 1, 2, 97, 8, 2, 7, 1, 2]).continuation(2) == [7, 1]


def test_ragged_rows_draft_alone_and_the_chain_shrinks_to_the_longest() -> None:
    ids = torch.tensor([[PAD, PAD, 5, 6, 7, 8, 5, 6], [9, 10, 11, 12, 13, 14, 15, 16]])
    inputs = dict(input_ids=ids, attention_mask=(ids != PAD).long(), max_new_tokens=6, do_sample=False)
    decoding = mmspec.vlm.start(tiny("llama"), drafter=PromptLookup(longest=3), **inputs)
    decoding.step()
    target, state = decoding.target, decoding.state
    assert decoding.target.padding is not None
    for row, tokens in enumerate(([7], [20])):  # pretend the target had said this
        target.tokens[row] = tokens
    draft = state.propose(target, decoding.keys)
    assert draft.value[0, 1:].tolist() == [8, 5, 6] and draft.valid[0].all()
    assert draft.valid[1].tolist() == [True, False, False, False]
    target.live[0] = False
    assert state.propose(target, decoding.keys).tree.nodes == 1


def test_the_length_of_a_match_is_counted_backwards_to_the_last_placeholder() -> None:
    index = index_of([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5])
    assert [index.matched(most) for most in (0, 2, 9)] == [0, 2, 5]
    assert index_of([8, 2, 3, 6, 97, 2, 3]).matched(9) == 2 and index_of([97, 2, 3, 6, 8, 2, 3]).matched(9) == 2
    assert index_of([1, 2, 3]).matched(4) == 0


def test_doubling_copies_more_of_longer_matches() -> None:
    for ids, count in (
        ([5, 6, 7, 8, 9, 40, 5], 2),
        ([4, 5, 6, 7, 8, 9, 10, 11, 4, 5], 4),
        ([3, 4, 5, *range(20, 29), 3, 4, 5], 8),
    ):
        inputs = dict(input_ids=torch.tensor([ids[:-1]]), max_new_tokens=12, do_sample=False)
        decoding = mmspec.vlm.start(tiny("llama"), drafter=PromptLookup(longest=9, doubling=True), **inputs)
        decoding.step()
        decoding.target.tokens[0] = ids[-1:]  # pretend the target had said this
        assert decoding.state.propose(decoding.target, decoding.keys).tree.max_depth == count


def test_nothing_is_drafted_past_the_end() -> None:
    ids = torch.tensor([[5, 6, 5, 6, 5, 6]])
    drafter = Watched(PromptLookup(longest=8, min_ngram=1))
    mmspec.generate(tiny("llama"), drafter=drafter, input_ids=ids, max_new_tokens=7, do_sample=False)
    assert all(len(r.tokens[0]) + len(r.drafted(0)) < 7 for r in drafter.rounds)


def test_settings_are_checked() -> None:
    for wrong in (dict(longest=0), dict(min_ngram=0), dict(max_ngram=1, min_ngram=2)):
        with pytest.raises(ValueError, match="expected"):
            PromptLookup(**wrong)

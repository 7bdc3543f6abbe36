"""Suffix lookup: the index against a naive count, its trees, exact text, and what requests share."""

from __future__ import annotations

import random

import pytest
import torch

import mmspec
from mmspec.vlm.drafters.suffix_lookup import SuffixIndex, SuffixLookup, _continuations, _Match
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import prompt, tiny


def longest_continued(texts: list[list[int]], text: list[int]) -> tuple[int, dict[int, int]]:
    """The longest suffix of a text that occurs in the texts before another token, and the counts of these tokens."""
    for size in range(len(text), 0, -1):
        counts: dict[int, int] = {}
        for other in texts:
            for start in range(len(other) - size):
                if other[start : start + size] == text[-size:]:
                    counts[other[start + size]] = counts.get(other[start + size], 0) + 1
        if counts:
            return size, counts
    return 0, {}


def shares_at(match: _Match) -> tuple[int, dict[int, float]]:
    place, length = match.continued()
    return length, {token: share for token, share, _ in _continuations(place)} if length else {}


@pytest.mark.parametrize("seed", range(4))
def test_the_longest_match_and_its_counts_are_those_of_a_naive_search(seed: int) -> None:
    rng, index, texts = random.Random(seed), SuffixIndex(), []
    for size in (20, 1, 30, 25):
        texts.append([rng.randrange(3) for _ in range(size)])
        index.extend([*texts[-1], -1])
        match, text = _Match(index, index.root), []
        for _ in range(30):
            text.append(rng.randrange(4))
            match.read(text[-1])
            length, counts = longest_continued(texts, text)
            found, shares = shares_at(match)
            assert found == length and set(shares) == set(counts)
            # the rest of the shares is that of texts that end there
            ends = sum(other[-length:] == text[-length:] for other in texts) if length else 0
            for token, share in shares.items():
                assert share == pytest.approx(counts[token] / (sum(counts.values()) + ends))


def test_a_text_finds_its_own_earlier_suffixes_while_the_index_grows() -> None:
    rng, index, text = random.Random(7), SuffixIndex(), []
    match = _Match(index, index.root)
    for _ in range(120):
        text.append(rng.randrange(3))
        match.read(text[-1])
        index.extend(text[-1:])
        length, counts = longest_continued([text], text)
        total = sum(counts.values())
        assert shares_at(match) == (length, {token: count / total for token, count in counts.items()})


def test_a_match_sees_answers_that_are_added_meanwhile() -> None:
    rng, index, texts, text = random.Random(5), SuffixIndex(), [], []
    match = _Match(index, index.root)
    for _ in range(60):
        text.append(rng.randrange(2))
        match.read(text[-1])
        texts.append([rng.randrange(2) for _ in range(6)])
        index.extend([*texts[-1], -1])
        length, shares = shares_at(match)
        after = [t[i + length] for t in texts for i in range(6 - length) if t[i : i + length] == text[-length:]]
        ends = sum(t[-length:] == text[-length:] for t in texts)
        if length:
            assert shares == {token: pytest.approx(after.count(token) / (len(after) + ends)) for token in set(after)}


def test_several_continuations_form_a_tree() -> None:
    inputs = dict(input_ids=torch.tensor([[5, 6, 7, 9, 5, 6, 7, 9, 5, 6, 8, 9, 5]]), max_new_tokens=9, do_sample=False)
    decoding = mmspec.vlm.start(tiny("llama"), drafter=SuffixLookup(nodes=4), **inputs)
    decoding.step()
    decoding.target.tokens[0][:] = [6]  # pretend the target had said this
    draft = decoding.state.propose(decoding.target, decoding.keys)
    # "9 5 6" was followed by 7 and by 8, and 7 and 8 by 9
    assert draft.value[0, 1:].tolist() == [7, 8, 9, 9] and draft.tree.parent[0, 1:].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("kind", ("llama", "llava"))
def test_greedy_text_is_that_of_transformers_and_answers_are_found_again(kind: str) -> None:
    inputs = prompt(kind, images=0 if kind == "llama" else 1, where="echo", batch=4)
    drafter, settings = Watched(SuffixLookup(index=SuffixIndex())), dict(max_new_tokens=24, do_sample=False)
    truth = tiny(kind).generate(**inputs, **settings)
    passes = []
    for _ in range(2):
        out = mmspec.generate(tiny(kind), drafter=drafter, return_dict=True, **settings, **inputs)
        assert torch.equal(out.sequences, truth)
        passes.append(out.stats.target_passes)
    assert passes[1] < passes[0] / 2
    barred = set(drafter.state.barred)
    assert not barred & {token for r in drafter.rounds for row in range(4) for token in r.drafted(row)}


def test_a_row_alone_is_the_row_in_a_batch_and_requests_share_nothing_without_an_index() -> None:
    inputs = prompt("llama", batch=4)
    settings = dict(drafter=SuffixLookup(), do_sample=True, temperature=0.6, max_new_tokens=24, return_dict=True)
    together = mmspec.generate(tiny("llama"), seed=[5, 6, 7, 8], **settings, **inputs).sequences[:, -24:]
    for row in (0, 2):
        keep = inputs["attention_mask"][row].bool()
        alone = [
            mmspec.generate(
                tiny("llama"), seed=[5 + row], input_ids=inputs["input_ids"][row : row + 1, keep], **settings
            )
            for _ in range(2)
        ]
        assert torch.equal(alone[0].sequences[0, -24:], together[row])
        assert alone[0].stats.accepted == alone[1].stats.accepted


def test_long_runs_of_a_token_stay_cheap() -> None:
    index = SuffixIndex()
    index.extend([3] * 3000)
    match = _Match(index, index.root)
    for _ in range(50):
        match.read(3)
    assert shares_at(match) == (50, {3: 1.0})


def test_settings_are_read_and_checked() -> None:
    assert mmspec.methods.parse("suffix:nodes=5,shortest=2", domain="vlm").make() == SuffixLookup(nodes=5, shortest=2)
    for wrong in (dict(nodes=0), dict(depth=0), dict(shortest=0), dict(least=1.0)):
        with pytest.raises(ValueError, match="expected"):
            SuffixLookup(**wrong)


def state_after(lookup: SuffixLookup, text: list[int]) -> tuple[object, object]:
    """The state of a request whose prompt and first token are a text, and its target."""
    run = mmspec.vlm.start(tiny("llama"), drafter=lookup, input_ids=torch.tensor([text[:-1]]), max_new_tokens=9)
    run.step()
    run.target.tokens[0], run.target.pending[0] = [text[-1]], text[-1]
    return run.state, run.target


def test_copies_follow_the_likeliest_continuation() -> None:
    text = [5, 6, 7, 8, 9, 5, 6, 7, 3, 5, 6, 7, 8, 4, 5, 6, 7]
    state, target = state_after(SuffixLookup(nodes=32, depth=5), text)
    branches = state.branches(target, 9, 5)[0]
    assert branches[0] == state.continuations(target, 5)[0] and branches[0][0] == 8
    assert {path[0] for path in branches} == {8, 3} and max(map(len, branches)) == 5
    assert len(state.branches(target, 1, 2)[0]) == 1 and state.matched(2) == [2] and state.matched(9) == [3]


@pytest.mark.parametrize(("doubling", "copied"), ((True, [8, 9]), (False, [8, 9, 1, 2, 3])))
def test_a_short_match_may_copy_little(doubling: bool, copied: list[int]) -> None:
    state, target = state_after(SuffixLookup(depth=5, doubling=doubling), [5, 6, 7, 8, 9, 1, 2, 3, 4, 7])
    assert state.continuations(target) == [copied]

"""Top-k and top-p over a wide vocabulary: the tokens that stay are those of a whole sort, ties included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mmspec.vlm.processors.nodes import NodeProcessors
from mmspec.vlm.processors.truncation import FastTruncation, with_fast_truncation

VOCAB = 6000


class StableTopP(TopPLogitsWarper):
    """transformers' top-p with a stable sort, so that the order of equal scores is a rule and no accident."""

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        ordered, token = torch.sort(scores, stable=True)
        cut = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
        cut[..., -self.min_tokens_to_keep :] = False
        return scores.masked_fill(cut.scatter(1, token, cut), -torch.inf)


def rows(kind: str) -> Tensor:
    """float32 [R, V] scores: those of "ties" lie on a grid of sixteenths, as scores in 16 bits do; "flat" rows need a sort."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(24, VOCAB, generator=generator)
    scale = torch.tensor([0.2, 1.0] if kind == "flat" else [2.0, 3.0, 5.0, 9.0]).repeat(
        24 // (2 if kind == "flat" else 4)
    )
    scores = scores * scale[:, None]
    return (scores * 16).round() / 16 if kind == "ties" else scores


SETTINGS = {
    "top-p": lambda top_p: [top_p(0.9)],
    "narrow top-p": lambda top_p: [top_p(0.3)],
    "top-p of five at least": lambda top_p: [top_p(0.5, min_tokens_to_keep=5)],
    "top-k": lambda top_p: [TopKLogitsWarper(50)],
    "top-k, top-p": lambda top_p: [TopKLogitsWarper(50), top_p(0.9)],
    "top-p, top-k": lambda top_p: [top_p(0.95), TopKLogitsWarper(20)],
    "temperature between": lambda top_p: [TopKLogitsWarper(40), TemperatureLogitsWarper(0.7), top_p(0.8)],
}


@pytest.mark.parametrize("kind", ["smooth", "ties", "flat"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_tokens_of_a_whole_sort_stay(name: str, kind: str) -> None:
    scores = rows(kind)
    before = scores.clone()
    found = with_fast_truncation(SETTINGS[name](TopPLogitsWarper))(None, scores)
    assert torch.equal(found, LogitsProcessorList(SETTINGS[name](StableTopP))(None, scores))
    assert torch.equal(scores, before)


def test_without_ties_the_scores_are_those_of_transformers() -> None:
    scores = rows("smooth")
    for make in SETTINGS.values():
        processors = make(TopPLogitsWarper)
        assert torch.equal(
            with_fast_truncation(processors)(None, scores), LogitsProcessorList(processors)(None, scores)
        )


def test_the_highest_ids_of_a_tie_stay() -> None:
    scores = torch.full((1, VOCAB), -20.0)
    tied = torch.tensor([7, 400, 2999, 5998])
    scores[0, tied] = 1.0
    found = with_fast_truncation([TopPLogitsWarper(0.6)])(None, scores)
    assert found.isfinite().nonzero()[:, 1].tolist() == tied[1:].tolist()
    tied = torch.arange(0, VOCAB, 3)  # more equal scores than candidates
    scores[0, tied] = 2.0
    found = with_fast_truncation([TopPLogitsWarper(0.5)])(None, scores)
    stay = found.isfinite().nonzero()[:, 1]
    assert torch.equal(stay, tied[-len(stay) :]) and abs(len(stay) - len(tied) / 2) <= 1


def test_a_whole_sort_is_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows = []
    whole = FastTruncation._sort
    monkeypatch.setattr(FastTruncation, "_sort", lambda self, row: (sorted_rows.append(row), whole(self, row))[1])
    with_fast_truncation([TopKLogitsWarper(50), TopPLogitsWarper(0.9)])(None, rows("ties"))
    peaked = rows("smooth")[torch.arange(24) % 4 > 0]  # the others need a sixth of the vocabulary
    with_fast_truncation([TopPLogitsWarper(0.9)])(None, peaked)
    assert len(sorted_rows) <= 1


def test_rows_without_a_distribution_match_transformers() -> None:
    scores = rows("smooth")[:5]
    scores[0] = -torch.inf
    scores[1, 3] = torch.nan
    scores[2, 3] = torch.inf
    scores[3, 10:] = -torch.inf
    for make in SETTINGS.values():
        found = with_fast_truncation(make(TopPLogitsWarper))(None, scores)
        expected = LogitsProcessorList(make(StableTopP))(None, scores)
        assert torch.equal(found.nan_to_num(nan=7.0, neginf=-9.0), expected.nan_to_num(nan=7.0, neginf=-9.0))


def test_only_transformers_own_objects_are_replaced() -> None:
    own, filled = StableTopP(0.9), TopKLogitsWarper(5, filter_value=-1e4)
    kept = with_fast_truncation([own, filled, TopKLogitsWarper(5), TopPLogitsWarper(0.9), TemperatureLogitsWarper(2.0)])
    assert kept[:2] == [own, filled] and [type(one) for one in kept[2:]] == [FastTruncation, TemperatureLogitsWarper]


def test_a_narrow_vocabulary_goes_through_transformers_own_processors() -> None:
    scores = rows("ties")[:, :500].contiguous()
    processors = [TopKLogitsWarper(50), TopPLogitsWarper(0.9)]
    found = with_fast_truncation(processors)(None, scores)
    assert torch.equal(found, LogitsProcessorList(processors)(None, scores))


def test_nodes_and_drafters_are_served_by_it() -> None:
    processors = NodeProcessors(LogitsProcessorList([TopPLogitsWarper(0.9)]), 1)
    scores = rows("ties")
    expected = StableTopP(0.9)(None, scores)
    assert torch.equal(processors.warp(scores[None])[0], expected)
    assert torch.equal(processors.rows[0](torch.zeros(len(scores), 1, dtype=torch.long), scores), expected)

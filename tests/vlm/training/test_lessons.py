"""Lessons of served requests: they hold the law that was drafted from, and only wrong places teach."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.architectures import parts_of
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.training.online import Online
from mmspec.vlm.training.rejected_places import (
    Lesson,
    RequestRecord,
    WrongPlace,
    coarse_divergence,
    lesson_loss,
    mean_likelihood,
    wrong_predictions,
)
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny

CHAIN = Chain(FixedLength(3))
SAMPLED = dict(do_sample=True, temperature=0.8, top_k=0, max_new_tokens=16)


def chained(name: str = "eagle") -> ShapedDrafter:
    return make(name).with_shape(CHAIN, CHAIN)


def answer(drafter: object, seed: int = 0, **settings: object) -> object:
    inputs = prompt("llava", images=2, batch=4, seed=seed)
    return mmspec.generate(
        tiny("llava"), drafter=drafter, seed=seed, return_dict=True, **{**SAMPLED, **settings}, **inputs
    )


@pytest.mark.parametrize(
    "name",
    ["eagle3", "vispec", "flash", "hydra", "medusa"]
    + [
        pytest.param(name, marks=pytest.mark.whole)
        for name in (
            "eagle",
            "eagle_without_pictures",
            "msd",
            "specvlm",
            "flash_autoregressive",
            "hydra_with_prefix_layer",
        )
    ],
)
def test_a_lesson_predicts_from_the_law_that_was_drafted_from(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pictures in ragged rows: compressed rows, padding and every depth have to be those of the request."""
    drawn: list[list[torch.Tensor]] = [[] for _ in range(4)]
    note = RequestRecord.note

    def spy(self, target, draft, evidence, verdict):
        before = [len(row) for row in self.wrong]
        note(self, target, draft, evidence, verdict)
        for row, count in enumerate(before):
            if len(self.wrong[row]) > count:
                drawn[row].append(draft.law.scores[row, draft.law.row[verdict.node[row]]])

    monkeypatch.setattr(RequestRecord, "note", spy)
    online = Online(chained(name), every=9)
    answer(online)
    assert online.step() is None and len(online.lessons) == 4
    parts = parts_of(tiny("llava"))
    assert all(lesson.temperature == 0.8 for lesson in online.lessons)
    got: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for logits, places in wrong_predictions(online.drafter, parts, online.lessons):
            got |= {id(place): logits[n] for n, place in enumerate(places)}
    ruled = torch.isinf(drawn[0][0])
    compared = 0
    for row, lesson in enumerate(online.lessons):
        for place, scores in zip(lesson.wrong, drawn[row], strict=True):
            own = got[id(place)].masked_fill(ruled, -torch.inf).log_softmax(-1)
            torch.testing.assert_close(own.exp(), scores.softmax(-1), atol=2e-5, rtol=1e-3)
            compared += 1
    assert compared > 40


def test_lessons_hold_no_picture_tokens_and_few_picture_rows() -> None:
    online = Online(chained("vispec"), every=9)
    answer(online)
    online.step()
    text, pictures = 14, prompt("llava", images=2, batch=4)["input_ids"]
    assert pictures.shape[1] > 2 * text
    placeholders = set(tiny("llava").config.image_token_id for _ in "x")
    for lesson in online.lessons:
        assert not placeholders & set(lesson.ids.tolist())
        assert int((lesson.prompt.origin < 0).sum()) <= 2  # a compressed row a picture
        assert all(place.slot < len(lesson.ids) and len(place.share) <= 64 for place in lesson.wrong)


def test_only_wrong_places_get_gradients() -> None:
    outputs = [torch.randn(1, 7, 5, requires_grad=True) for _ in range(3)]
    drafter = SimpleNamespace(
        embeddings=lambda ids, parts: torch.zeros(*ids.shape, 5),
        fuse=lambda embeds, hidden, context: (embeds, embeds),
        unroll=lambda slots, view, first, depths: [out[:, first:] for out in outputs[:depths]],
        own_logits=lambda out, depth, head: out,
    )
    rows, count = torch.zeros(1, 3, 5), torch.tensor([3])
    at = torch.arange(3)[None]
    lesson = Lesson(
        PromptSlots(rows, rows, at, count, count, at),
        torch.zeros(4, 5),
        torch.zeros(4, dtype=torch.long),
        [
            WrongPlace(slot, depth, torch.tensor([4, 2]), torch.tensor([0.7, 0.1]))
            for slot, depth in ((0, 0), (3, 0), (2, 1))
        ],
        1.0,
    )
    parts = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32, head=None)
    lesson_loss(drafter, parts, [lesson]).backward()
    touched = [] if outputs[0].grad is None else [tuple(x) for x in outputs[0].grad.abs().sum(-1).nonzero().tolist()]
    assert touched == [(0, 3), (0, 6)]
    assert [tuple(x) for x in outputs[1].grad.abs().sum(-1).nonzero().tolist()] == [(0, 5)] and outputs[2].grad is None


def test_the_coarse_divergence_joins_the_tokens_that_are_not_stored() -> None:
    torch.manual_seed(0)
    p, logits = torch.randn(6, 9).softmax(-1), torch.randn(6, 9)
    share, column = p.topk(4, -1)
    q = logits.softmax(-1)
    joined = [
        torch.cat([law.gather(-1, column), 1 - law.gather(-1, column).sum(-1, keepdim=True)], -1) for law in (p, q)
    ]
    expected = (joined[0] * (joined[0] / joined[1]).log()).sum(-1)
    torch.testing.assert_close(coarse_divergence(logits, column, share), expected)
    whole, order = p.topk(9, -1)
    torch.testing.assert_close(coarse_divergence(logits, order, whole), (p * (p / q).log()).sum(-1))
    certain = torch.zeros(1, 9).index_fill(1, torch.tensor([3]), 1.0).topk(4, -1)
    torch.testing.assert_close(
        coarse_divergence(logits[:1], certain.indices, certain.values), -logits[:1].log_softmax(-1)[:, 3]
    )


def test_likelihoods_are_those_of_the_answers_tokens() -> None:
    """At depth 0 the drafter's law behind each pair, read by hand from a whole unroll."""
    online = Online(chained("eagle3"), every=9)
    answer(online)
    online.step()
    parts, drafter = parts_of(tiny("llava")), online.drafter
    alone = [mean_likelihood(drafter, parts, [lesson], 3) for lesson in online.lessons]
    assert mean_likelihood(drafter, parts, online.lessons, 3) == pytest.approx(sum(alone) / 4, rel=0.1)
    assert all(0 < value < 1 for value in alone)
    lesson = online.lessons[0]
    embeds = drafter.embeddings(lesson.ids[None], parts)
    attend, carry = drafter.fuse(embeds, lesson.hidden[None])
    first, count = lesson.prompt.attend.shape[1], len(lesson.ids)
    position = torch.cat([lesson.prompt.position, lesson.prompt.next_position[:, None] + torch.arange(count)], 1)
    slots = PromptSlots(
        torch.cat([lesson.prompt.attend, attend], 1),
        torch.cat([lesson.prompt.carry, carry], 1),
        position,
        None,
        None,
        torch.zeros_like(position),
    )
    out = drafter.unroll(slots, PromptView(embeds, embeds, position), first, 1)[0][0]
    law = drafter.own_logits(out, 1, parts.head).softmax(-1)
    words = drafter.vocabulary.tolist()
    likely = [float(law[n, words.index(int(t))]) for n, t in enumerate(lesson.ids[1:]) if int(t) in words]
    assert mean_likelihood(drafter, parts, [lesson], 1) == pytest.approx(sum(likely) / len(likely), rel=1e-4)

"""Online training: lessons hold the law that was drafted from, only wrong places teach, and weights rest during a request."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.length import FixedLength
from mmspec.vlm import load_drafter
from mmspec.vlm.architectures import parts_of
from mmspec.vlm.drafters.base.prompt_slots import PromptSlots, PromptView
from mmspec.vlm.drafters.base.trained_drafter import ShapedDrafter
from mmspec.vlm.training.examples import encode
from mmspec.vlm.training.lessons import (
    Lesson,
    RequestRecord,
    WrongPlace,
    coarse_divergence,
    lesson_loss,
    mean_likelihood,
    wrong_predictions,
)
from mmspec.vlm.training.online import Online
from mmspec.zoo.training.vlm.drafter_requests import HeldOutRequests, TextRequests
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


@pytest.mark.parametrize("settings", [SAMPLED, dict(SAMPLED, do_sample=False)], ids=["sampled", "greedy"])
def test_without_steps_every_output_is_the_drafters_own(settings: dict) -> None:
    drafter = chained()
    online = Online(drafter)
    plain, recorded = answer(drafter, **settings), answer(online, **settings)
    assert torch.equal(plain.sequences, recorded.sequences)
    assert plain.stats.accepted == recorded.stats.accepted and recorded.stats.exact


def test_steps_change_the_copy_and_later_requests_draft_with_the_new_weights(tmp_path: Path) -> None:
    drafter = chained()
    before = {name: value.clone() for name, value in drafter.state_dict().items()}
    online = Online(drafter, every=8, lr=0.05)
    answer(online)
    assert online.step() is None and online.steps == 0
    answer(online, seed=1)
    figures = online.step()
    assert figures["requests"] == 8 and figures["steps"] == online.steps == 1 and figures["loss"] > 0
    assert online.step() is None
    assert all(torch.equal(before[name], value) for name, value in drafter.state_dict().items())
    online.save_pretrained(tmp_path)
    saved = load_drafter(tmp_path, target=tiny("llava")).with_shape(CHAIN, CHAIN)
    changed = [name for name, value in saved.state_dict().items() if not torch.equal(before[name], value)]
    assert "fc.weight" in changed and "layer.qkv.weight" in changed
    assert "trained online on 8 requests" in json.loads((tmp_path / "card.json").read_text())["training"]
    new, fresh, old = answer(online, seed=5), answer(saved, seed=5), answer(drafter, seed=5)
    assert torch.equal(new.sequences, fresh.sequences) and new.stats.accepted == fresh.stats.accepted
    assert not torch.equal(new.sequences, old.sequences)


def test_a_step_that_did_not_help_is_undone() -> None:
    """The next requests decide: a wild step goes, a careful step of an untrained drafter stays."""
    for lr, undone in ((0.5, 1), (0.01, 0)):
        online = Online(chained(), every=4, lr=lr)
        start = online.drafter.fc.weight.clone()
        answer(online, seed=1)
        online.step()
        assert not torch.equal(online.drafter.fc.weight, start)
        answer(online, seed=2)
        assert online.step()["undone"] == online.undone == undone
        assert torch.equal(online._before["fc.weight"], start) is bool(undone)
        assert online.lessons == [] and online.steps == 2


def test_a_step_during_a_request_is_refused() -> None:
    online = Online(chained(), every=1)
    run = mmspec.vlm.start(tiny("llava"), drafter=online, seed=0, **SAMPLED, **prompt("llava", images=1))
    run.step()
    run.step()
    with pytest.raises(ValueError, match="between requests"):
        online.step()
    run.run()
    assert online.step()["requests"] == 1
    abandoned = mmspec.vlm.start(tiny("llava"), drafter=online, seed=1, **SAMPLED, **prompt("llava", images=1))
    abandoned.step()
    abandoned.step()
    del abandoned
    assert online.step() is not None


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


def test_old_lessons_leave_and_wrong_arguments_are_refused() -> None:
    online = Online(chained(), keep=30, every=99)
    for seed in range(3):
        answer(online, seed=seed)
    online.step()
    assert online.requests == 12
    assert 15 < sum(len(lesson.wrong) for lesson in online.lessons) <= 30
    for wrong in (dict(every=0), dict(lr=0.0), dict(keep=0)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Online(chained(), **wrong)
    with pytest.raises(ValueError, match="EAGLE family"):
        Online(make("dflash"))
    other = dict(prompt("qwen2_5_vl"), max_new_tokens=4)
    with pytest.raises(ValueError, match="new Online"):
        mmspec.generate(tiny("qwen2_5_vl"), drafter=online, **other)


def test_lessons_of_a_target_in_half_precision() -> None:
    online = Online(chained(), every=4, lr=1e-3)
    inputs = prompt("llava", images=2, batch=4)
    inputs["pixel_values"] = inputs["pixel_values"].bfloat16()
    mmspec.generate(tiny("llava", dtype=torch.bfloat16), drafter=online, seed=0, **SAMPLED, **inputs)
    assert online.step()["loss"] > 0 and next(online.drafter.parameters()).dtype == torch.float32


def served(online: object, requests: object, count: int) -> float:
    """Tokens a pass over the first requests; an Online learns meanwhile."""
    model, processor = mmspec.zoo.load("vlm")
    tokens = passes = 0
    for example in (requests[n] for n in range(count)):
        inputs = encode(processor, [example])
        out = mmspec.generate(model, drafter=online, max_new_tokens=48, do_sample=False, return_dict=True, **inputs)
        tokens, passes = tokens + sum(out.stats.emitted), passes + out.stats.target_passes
        if isinstance(online, Online):
            online.step()
    return tokens / passes


@pytest.mark.whole
def test_a_steady_stream_never_falls_and_a_shifted_stream_rises() -> None:
    """The zoo's EAGLE knows captions. Requests without a picture are new to it, and it learns them within 64 requests."""
    start = mmspec.zoo.load("vlm/eagle").with_shape(Chain(FixedLength(7)))
    steady = Online(start)
    served(steady, HeldOutRequests(48), 48)
    known = HeldOutRequests(200)
    held = [known[180 + n] for n in range(10)]
    assert steady.steps >= 5
    assert served(steady.drafter.with_shape(Chain(FixedLength(7))), held, 10) > 0.98 * served(start, held, 10)
    shifted, texts = Online(start), TextRequests(200)
    served(shifted, texts, 64)
    held = [texts[180 + n] for n in range(10)]
    assert served(shifted.drafter.with_shape(Chain(FixedLength(7))), held, 10) > 1.15 * served(start, held, 10)

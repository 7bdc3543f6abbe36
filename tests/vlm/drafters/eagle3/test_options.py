"""Every option of published EAGLE-3 drafters, against a plain formulation: prompts, trees, chains and training.

Logits are compared, since the drafts of a misread drafter are verified like others.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.eagle3 import Eagle3
from mmspec.vlm.graphs.rounds import Rounds
from mmspec.vlm.hidden_states import record_states
from tests.core.layers.graphs.recorded import recorded
from tests.vlm.drafters.eagle3.reference import OPTIONS, Reference, published
from tests.vlm.graphs.cases import alike, both
from tests.vlm.tiny import HIDDEN, VOCAB, prompt, tiny

CLOSE = dict(atol=1e-4, rtol=1e-4)
each = pytest.mark.parametrize("option", OPTIONS)


def pair(option: str, embedding: Tensor | None = None, target=None) -> tuple[Eagle3, Reference]:
    config, state = published(option, embedding)
    return mmspec.vlm.drafter_from_state_dict("eagle3", state, config, target), Reference(config, state)


def close(drafter: Eagle3, reference: Reference, out: Tensor, expected: Tensor) -> None:
    """The outputs are alike and the laws too."""
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(drafter.logits(out, 1, None), reference.scores(expected), **CLOSE)


def text_states(model, levels: tuple[int, ...], ids: Tensor) -> Tensor:
    with record_states(take_apart(model).decoder, levels) as seen:
        model(ids)
    return seen.levels


def check_rounds(option: str, shape, rounds: int = 3, embedding: Tensor | None = None) -> int:
    """Compares the outputs that a request drafts from with the reference's, and returns how many drafted nodes it saw."""
    model = tiny("llama")
    drafter, reference = pair(option, model.get_input_embeddings().weight if embedding is None else embedding)
    drafter = drafter.with_shape(shape)
    inputs = prompt("llama")
    run = mmspec.vlm.start(model, drafter=drafter, max_new_tokens=30, do_sample=False, **inputs)
    rows, count = reference.state["embed_tokens.weight"], 0
    for _ in range(rounds):
        run.step()
        seen: list[tuple[Tensor, Tensor | None, int, Tensor]] = []
        state, expand = run.state, run.state.expand

        def watched(token, hidden, ancestor, back, depth, expand=expand, seen=seen):
            seen.append((token, ancestor, back, expand(token, hidden, ancestor, back, depth)))
            return seen[-1][-1]

        state.expand = watched
        state.propose(run.target, run.keys)
        state.expand = expand
        text = torch.cat([inputs["input_ids"], torch.tensor(run.target.tokens)], 1)
        levels, embeds = text_states(model, drafter.levels, text[:, :-1])[0], rows[text[0, 1:]]
        close(drafter, reference, state.root[0], reference.draft(embeds, levels, ()))
        drafted = torch.zeros(0, dtype=torch.long)
        for token, ancestor, back, out in seen:
            drafted = torch.cat([drafted[:back], token[0]])
            for node in range(token.shape[1]):
                above = torch.ones(back + 1) > 0 if ancestor is None else ancestor[0, node]
                path = drafted[: len(above)][above]
                close(drafter, reference, out[0, node], reference.draft(embeds, levels, rows[path]))
                count += 1
    return count


@torch.no_grad()
@each
def test_drafts_of_a_request_match_the_reference(option: str) -> None:
    assert check_rounds(option, DynamicTree(nodes=6, depth=3, width=2)) == 12


@torch.no_grad()
@pytest.mark.parametrize("option", ("window", "everything"))
def test_drafts_longer_than_the_window_do_so_too(option: str) -> None:
    assert check_rounds(option, Chain(FixedLength(9)), rounds=2) == 16
    assert check_rounds(option, DynamicTree(nodes=10, depth=9, width=2), rounds=2) == 32  # whose slots are no positions


@torch.no_grad()
@each
def test_unrolled_training_matches_the_drafts(option: str) -> None:
    drafter, reference = pair(option)
    rng = torch.Generator().manual_seed(2)
    ids = torch.randint(7, 60, (1, 13), generator=rng)
    levels, rows = torch.randn(1, 12, 3 * HIDDEN, generator=rng), reference.state["embed_tokens.weight"]
    view = drafter.embedded(PromptView(torch.zeros(1, 12, HIDDEN), levels, torch.zeros(1, 12, dtype=torch.long)), ids)
    first, depths = 2, 8
    outputs, embeds = drafter.unroll(drafter.read(view), view, first, depths), rows[ids[0, 1:]]
    for depth, out in enumerate(outputs):
        for slot in range(first + depth, 12):
            start = slot - depth + 1
            expected = reference.draft(embeds[:start], levels[0, :start], embeds[start : slot + 1])
            close(drafter, reference, out[0, slot - first], expected)


@torch.no_grad()
def test_an_embedding_that_is_the_targets_is_shared_and_another_is_the_drafters_own(tmp_path) -> None:
    model = tiny("llama")
    shared = model.get_input_embeddings().weight
    other = shared + 0.3 * torch.randn(shared.shape, generator=torch.Generator().manual_seed(1))
    assert pair("plain", shared, model)[0].embed_tokens is None
    assert pair("plain", shared.bfloat16(), model)[0].embed_tokens is None  # as far as the stored precision tells
    assert torch.equal(pair("plain", shared)[0].embed_tokens.weight, shared)  # nothing is known of the target
    drafter, _ = pair("plain", other, model)
    assert torch.equal(drafter.embed_tokens.weight, other)
    drafter.save_pretrained(tmp_path)
    again = mmspec.vlm.load_drafter(tmp_path, target=model)
    assert again.config == drafter.config and torch.equal(again.embed_tokens.weight, other)
    assert check_rounds("plain", DynamicTree(nodes=4, depth=2, width=2), rounds=2, embedding=other)


@torch.no_grad()
@pytest.mark.parametrize("option", ("window", "everything"))
def test_rows_of_a_padded_batch_draft_as_they_do_alone(option: str) -> None:
    model, inputs = tiny("llama"), prompt("llama", batch=4)
    drafter, _ = pair(option, torch.randn(VOCAB, HIDDEN))
    settings = dict(drafter=drafter, max_new_tokens=12, do_sample=False)
    run = mmspec.vlm.start(model, **settings, **inputs)
    lone = []
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        lone.append(mmspec.vlm.start(model, **settings, input_ids=inputs["input_ids"][row : row + 1, mask]))
    for _ in range(3):
        run.step()
        run.state.propose(run.target, run.keys)
        for row, alone in enumerate(lone):
            alone.step()
            alone.state.propose(alone.target, alone.keys)
            torch.testing.assert_close(run.state.root[row], alone.state.root[0], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("option", OPTIONS)
def test_a_saved_drafter_has_its_options(option: str, tmp_path) -> None:
    drafter, _ = pair(option)
    drafter.save_pretrained(tmp_path)
    again = mmspec.vlm.load_drafter(tmp_path)
    assert dataclasses.asdict(again.config) == dataclasses.asdict(drafter.config)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in drafter.state_dict().items())


@torch.no_grad()
def test_pictures_keep_the_targets_features_beside_an_embedding_of_its_own() -> None:
    drafter, _ = pair("plain", torch.randn(VOCAB, HIDDEN))
    model, inputs = tiny("llava"), prompt("llava", images=1)
    run = mmspec.vlm.start(model, drafter=drafter, max_new_tokens=4, do_sample=False, **inputs)
    run.step()
    ids = inputs["input_ids"]
    view = run.state.view()
    shown, merged = view.picture[0] > 0, run.target.prompt_embeds[0, 1:]
    assert shown.any() and not shown.all()
    assert torch.equal(view.embeds[0, shown], merged[shown])
    assert torch.equal(view.embeds[0, ~shown], drafter.embed_tokens.weight[ids[0, 1:][~shown]])


@pytest.mark.parametrize("option", ("window", pytest.param("everything", marks=pytest.mark.whole)))
def test_captured_rounds_draft_the_same(option: str) -> None:
    drafter, _ = pair(option)
    with torch.no_grad():
        drafter.head.weight.mul_(0.3)  # flat laws, so that sampled drafts are kept
    settings = dict(
        drafter=drafter.with_shape(Chain(FixedLength(8))), max_new_tokens=24, do_sample=True, temperature=3.0
    )
    ordinary, captured = both(
        tiny("llama"), Rounds(record=recorded), seed=[3, 4], **settings, **prompt("llama", batch=2)
    )
    assert alike(ordinary, captured) and ordinary.stats.accept_length > 1.05

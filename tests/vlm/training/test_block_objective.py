"""Training of block drafters: one pass over all anchors, and losses and gradients of the public codes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.block_unroll import AnchoredBlocks, unroll_anchored_blocks
from mmspec.vlm.drafters.base.trained_drafter import DraftPrediction
from mmspec.vlm.drafters.dflash import DFlash
from mmspec.vlm.training import block_objective
from mmspec.vlm.training.block_objective import (
    BlockObjective,
    BlockPredictions,
    dpace_weights,
    draw_anchors,
    predict_lessons,
)
from mmspec.vlm.training.losses import cross_entropy, forward_kl
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from tests.parity import case
from tests.vlm.drafters.trained import blocks, make
from tests.vlm.tiny import prompt, tiny

CLOSE = dict(atol=2e-5, rtol=1e-4)
CONFIG = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    rms_norm_eps=1e-6,
    layer_types=["full_attention"] * 2,
    block_size=6,
    dflash_config={"mask_token_id": 95, "target_layer_ids": [0, 2]},
)


@pytest.fixture(scope="module")
def public() -> dict[str, Tensor]:
    return case("modern/dflash_train")


@pytest.fixture
def drafter(public: dict[str, Tensor]) -> DFlash:
    weights = {name.removeprefix("weight."): value for name, value in public.items() if name.startswith("weight.")}
    return mmspec.vlm.drafter_from_state_dict("dflash", weights, CONFIG).requires_grad_(True)


def parts_of(public: dict[str, Tensor]) -> SimpleNamespace:
    embed, head = nn.Embedding.from_pretrained(public["embed_tokens"]), nn.Linear(32, 96, bias=False)
    head.weight = nn.Parameter(public["lm_head"], requires_grad=False)
    return SimpleNamespace(embed=embed, head=head)


def gradients(drafter: DFlash) -> dict[str, Tensor]:
    """Under the published names."""
    heads, keys = 4 * 16, 2 * 16
    return {
        "fc.weight": drafter.fc.weight.grad,
        "layers.0.self_attn.k_proj.weight": drafter.layers[0].qkv.weight.grad[heads : heads + keys],
        "layers.1.mlp.down_proj.weight": drafter.layers[1].down.weight.grad,
    }


def of_specforge(public: dict[str, Tensor]) -> tuple[VlmTeacherBatch, Tensor, Tensor]:
    ids, states = public["specforge.input_ids"], public["specforge.target_hidden"]
    unread = torch.zeros(*ids.shape, 32)
    batch = VlmTeacherBatch(ids, public["specforge.loss_mask"] > 0, unread, unread, states)
    return batch, public["specforge.anchors"], public["specforge.anchor_keep"]


def test_rows_of_all_anchors_are_specforges(drafter: DFlash, public: dict[str, Tensor]) -> None:
    batch, anchor, keep = of_specforge(public)
    position = torch.arange(20).expand(2, -1)
    blocks = AnchoredBlocks(batch.ids, anchor, position, torch.zeros_like(position))
    rows = unroll_anchored_blocks(drafter, parts_of(public).embed, blocks, batch.hidden)
    torch.testing.assert_close(rows[keep], public["specforge.draft_hidden"][keep], **CLOSE)


OBJECTIVES = {
    "dflash": BlockObjective(gamma=4.0),
    "dpace": BlockObjective(weights="dpace", per="row", alpha=0.5),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradients_are_specforges(
    name: str, drafter: DFlash, public: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, anchor, keep = of_specforge(public)
    monkeypatch.setattr(block_objective, "draw_anchors", lambda answer, most: (anchor, keep))
    loss, _ = OBJECTIVES[name](drafter, parts_of(public), batch)
    torch.testing.assert_close(loss, public[f"specforge.{name}.loss"], **CLOSE)
    loss.backward()
    for weight, found in gradients(drafter).items():
        torch.testing.assert_close(found, public[f"specforge.{name}.grad.{weight}"], atol=3e-6, rtol=1e-4)


@pytest.mark.parametrize("changed", (dict(gamma=1e9), dict(per="place"), dict(gamma=7.0)), ids=str)
def test_another_weighting_is_another_loss(
    changed: dict, drafter: DFlash, public: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, anchor, keep = of_specforge(public)
    monkeypatch.setattr(block_objective, "draw_anchors", lambda answer, most: (anchor, keep))
    loss, _ = replace(OBJECTIVES["dflash"], **changed)(drafter, parts_of(public), batch)
    assert (loss - public["specforge.dflash.loss"]).abs() > 1e-2


def of_speculators(drafter: DFlash, public: dict[str, Tensor]) -> BlockPredictions:
    """A packed row; documents see themselves alone."""
    own = {name.removeprefix("speculators."): value for name, value in public.items() if "speculators." in name}
    anchor, document = own["anchors"][None], own["document_ids"]
    blocks = AnchoredBlocks(own["input_ids"], anchor, own["position_ids"], document)
    parts = parts_of(public)
    rows = unroll_anchored_blocks(drafter, parts.embed, blocks, own["target_hidden"])[0]
    student, counts = drafter.unary(rows, parts.head), own["row_mask"] > 0
    torch.testing.assert_close(student[counts], own["draft_logits"][counts], **CLOSE)
    teacher = own["target_logits"]
    return predictions_of(student[:, 1:], teacher[:, 1:], teacher[:, 1:].argmax(-1), counts[:, 1:])


def predictions_of(
    student: Tensor, teacher: Tensor, token: Tensor, counts: Tensor, acceptance: Tensor | None = None
) -> BlockPredictions:
    """Predictions of scores [N, D, V] that are there already."""
    place = counts.nonzero(as_tuple=True)
    student, teacher, token = student[place], teacher[place], token[place]

    def predict(places: Tensor) -> DraftPrediction:
        return DraftPrediction(student[places], teacher[places], token[places], 0)

    def overlap(one: Tensor, other: Tensor, places: Tensor) -> Tensor:
        return torch.minimum(one.softmax(-1), other.softmax(-1)).sum(-1)

    said = None if acceptance is None else acceptance[place]
    return BlockPredictions(predict, counts, place, token, student.shape[-1], said, overlap)


def every_score(blocks: BlockPredictions) -> Tensor:
    """The drafter's scores [N, D, k], 0 where a level does not count."""
    student = blocks.predict(torch.arange(len(blocks.token))).student
    return student.new_zeros(*blocks.counts.shape, student.shape[-1]).index_put(blocks.place, student)


SPECULATORS = {
    "kl": BlockObjective(((1.0, forward_kl),), gamma=4.0, per="place"),
    "ce": BlockObjective(gamma=4.0, per="place"),
    "ce_dpace": BlockObjective(weights="dpace", per="place"),
}


@pytest.mark.parametrize("name", SPECULATORS)
def test_loss_and_gradients_are_those_of_speculators(name: str, drafter: DFlash, public: dict[str, Tensor]) -> None:
    loss, _ = SPECULATORS[name].over(of_speculators(drafter, public), 1)
    torch.testing.assert_close(loss, public[f"speculators.{name}.loss"], **CLOSE)
    loss.backward()
    for weight, found in gradients(drafter).items():
        if (expected := public.get(f"speculators.{name}.grad.{weight}")) is not None:
            torch.testing.assert_close(found, expected, atol=3e-6, rtol=1e-4)


@pytest.mark.parametrize("pictures", (1, 2))
@pytest.mark.parametrize("name", ("dflash", "dflash_with_vision"))
def test_training_blocks_match_drafted_blocks(name: str, pictures: int) -> None:
    """A block behind an anchor of an answer equals the block that a request drafts whose root is that token."""
    drafter, model = make(name), tiny("llava")
    inputs = prompt("llava", pictures, batch=4)
    said = model.generate(**inputs, max_new_tokens=9, do_sample=False)
    start, parts = inputs["input_ids"].shape[1], take_apart(model)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(said[:, start:])], 1)
    answer = torch.arange(said.shape[1])[None].expand(len(said), -1) >= start
    batch = teacher_pass(parts, dict(inputs, input_ids=said, attention_mask=mask), answer, drafter.levels)
    anchor = torch.tensor([[start, start + 3]]).expand(4, -1)
    trained = predict_lessons(drafter, parts, batch, anchor, torch.ones_like(anchor, dtype=torch.bool))[0][1]
    run = mmspec.vlm.start(model, drafter=drafter, max_new_tokens=20, do_sample=False, **inputs)
    run.step()
    with torch.no_grad():
        run.state.propose(run.target, run.keys)
    scores = every_score(trained).unflatten(0, (4, 2))[:, 0]
    torch.testing.assert_close(scores + run.state.ruling, run.state.unary, atol=1e-4, rtol=1e-3)
    token = trained.grid(trained.token)[0].long()
    assert torch.equal(token, said[0, start + 1 : start + 1 + drafter.config.drafted])


@pytest.mark.parametrize("head", ("vanilla", "gated", "rnn"))
def test_training_walks_as_drafting_does(head: str) -> None:
    """Asked about the tokens that a request drafts, every level says them again."""
    drafter, model = blocks("dspark", markov_rank=8, markov_head_type=head, from_root=True), tiny("llava")
    with torch.no_grad():
        drafter.markov_head.markov_w2.weight.mul_(40)  # loud enough to turn what rows say alone
    parts, inputs = take_apart(model), prompt("llava", 1)
    run = mmspec.vlm.start(model, drafter=drafter, max_new_tokens=20, do_sample=False, **inputs)
    run.step()
    with torch.no_grad():
        drafted = run.state.propose(run.target, run.keys).value  # behind the one token there is
    start, ids = inputs["input_ids"].shape[1], torch.cat([inputs["input_ids"], drafted], 1)
    answer = torch.arange(ids.shape[1])[None] >= start
    batch = teacher_pass(
        parts, dict(inputs, input_ids=ids, attention_mask=torch.ones_like(ids)), answer, drafter.levels
    )
    anchor = torch.tensor([[start]])
    said = predict_lessons(drafter, parts, batch, anchor, anchor > 0)[0][1]
    assert bool(said.counts.all()) and torch.equal(every_score(said).add(run.state.ruling).argmax(-1), drafted[:, 1:])
    assert not torch.equal(run.state.unary.argmax(-1), drafted[:, 1:])  # the walk matters
    first = drafter.after(run.state.rows[:, :1], drafted[:, :1], None)
    torch.testing.assert_close(said.grid(said.acceptance)[:, :1], drafter.acceptance(first), atol=1e-4, rtol=1e-3)


def test_predicted_acceptance_learns_the_overlap_of_the_distributions() -> None:
    student, teacher = torch.randn(1, 3, 7), torch.randn(1, 3, 7)
    said = torch.zeros(1, 3, requires_grad=True)
    counts = torch.tensor([[True, True, False]])
    objective = BlockObjective(per="place")
    full = predictions_of(student, teacher, torch.zeros(1, 3, dtype=torch.long), counts, said)
    loss, _ = objective.over(full, 1)
    loss.backward()
    overlap = torch.minimum(student.softmax(-1), teacher.softmax(-1)).sum(-1)
    level = torch.exp(-torch.arange(3) / block_objective.default_gamma(3))
    torch.testing.assert_close(said.grad, (0.5 - overlap) * level * counts / 2)
    plain, _ = objective.over(replace(full, acceptance=None), 1)
    torch.testing.assert_close(loss.detach() - plain, 0.6931472 * (level * counts).sum() / 2)


def test_anchors_are_answers_tokens_that_another_follows() -> None:
    answer = torch.zeros(3, 12, dtype=torch.bool)
    answer[0, 4:9] = answer[1, 10:] = True
    seen = torch.zeros_like(answer)
    for _ in range(200):
        slot, drawn = draw_anchors(answer, 2)
        assert slot.shape == (3, 2) and drawn.sum(1).tolist() == [2, 1, 0]
        seen |= torch.zeros_like(answer).scatter(1, slot, drawn)
    assert seen[0].nonzero()[:, 0].tolist() == [4, 5, 6, 7]
    assert seen[1].nonzero()[:, 0].tolist() == [10]


def test_paces_are_the_gradient_of_the_expected_length() -> None:
    """w_j is q_j times the derivative of the smoothed expected accepted length by q_j."""
    q = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    smooth = q.log().exp()
    length = smooth.cumprod(-1).sum()
    length.backward()
    found = dpace_weights(q.detach(), torch.ones(3, 5, dtype=torch.bool), alpha=0.0)
    torch.testing.assert_close(found, q.grad * q.detach())


def test_a_batch_without_two_answer_tokens_in_a_row_teaches_nothing() -> None:
    ids = torch.zeros(2, 6, dtype=torch.long)
    batch = VlmTeacherBatch(ids, ids > 0, *(torch.zeros(2, 6, 32),) * 3)
    loss, notes = BlockObjective(((1.0, cross_entropy),))(make("dflash"), take_apart(tiny("llava")), batch)
    assert float(loss) == 0 and not notes


def test_training_learns_the_answers_of_a_batch() -> None:
    torch.manual_seed(0)
    drafter, parts = make("dflash").train().requires_grad_(True), take_apart(tiny("llava"))
    ids = torch.randint(5, 90, (2, 24))
    answer = (torch.arange(24) >= 6).expand(2, -1)
    batch = teacher_pass(parts, dict(input_ids=ids, attention_mask=torch.ones_like(ids)), answer, drafter.levels)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=5e-3)
    first = last = None
    for _ in range(40):
        loss, _ = BlockObjective(anchors=8)(drafter, parts, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = float(loss) if first is None else first, float(loss)
    assert last < 0.5 * first

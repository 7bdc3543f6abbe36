"""Block drafters of a reduced vocabulary: their head, DSpark's maps, training in chunks, drafting and its law."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree
from mmspec.core.length.controls import FixedLength
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.block_drafter import BlockDrafter
from mmspec.vlm.drafters.drafter_names import new_drafter, untrained
from mmspec.vlm.training import block_objective, chunked_losses
from mmspec.vlm.training.block_objective import BlockObjective, dpace_weights
from mmspec.vlm.training.losses import cross_entropy, hard_cross_entropy, terms_of
from mmspec.vlm.training.run_setup import fit_vocabulary
from mmspec.vlm.training.teacher import VlmTeacherBatch, teacher_pass
from tests.vlm.drafters.dflash.test_law import drawn
from tests.vlm.drafters.mutants import evenly_on_record
from tests.vlm.drafters.test_vision_law import LAWS, V, exact_law, narrow, p_value
from tests.vlm.drafters.trained import SIZES, blocks
from tests.vlm.tiny import VOCAB, prompt, tiny

KINDS = {
    "dflash": ("dflash", {}),
    "dflash tied": ("dflash", dict(tied_head=True)),
    "dspark": ("dspark", dict(markov_rank=8, markov_head_type="vanilla", from_root=True)),
    "dspark reduced": (
        "dspark",
        dict(markov_rank=8, markov_head_type="rnn", from_root=True, reduced_markov=True, tied_head=True),
    ),
}


def ids_of(vocab: int) -> list[int]:
    return [token for token in range(vocab) if token % 5 and token != 7]


def make(kind: str, vocab: int = VOCAB, model: torch.nn.Module | None = None) -> BlockDrafter:
    """A drafter without a fifth of the vocabulary, the same weights every time."""
    family, sizes = KINDS[kind]
    with torch.random.fork_rng(), patch.dict(SIZES, vocab_size=vocab):
        torch.manual_seed(0)
        drafter = blocks(family, draft_vocab_size=vocab - 1, **sizes)
        drafter.start_from(take_apart(model or tiny("llama")))
        drafter = drafter.with_vocabulary(ids_of(vocab))
        with torch.no_grad():
            for name, weight in drafter.named_parameters():
                if "markov" in name:
                    weight.add_(torch.randn_like(weight) * 0.3)
    return drafter.eval().requires_grad_(False)


def taught(drafter: BlockDrafter, rows: int = 2) -> VlmTeacherBatch:
    rng = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 90, (rows, 24), generator=rng)
    answer = (torch.arange(24) >= 6).expand(rows, -1)
    inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    return teacher_pass(take_apart(tiny("llama")), inputs, answer, drafter.levels)


def loss_of(
    drafter: BlockDrafter, objective: BlockObjective, batch: VlmTeacherBatch
) -> tuple[float, dict, list[Tensor]]:
    drafter.requires_grad_(True).zero_grad()
    torch.manual_seed(1)
    loss, notes = objective(drafter, take_apart(tiny("llama")), batch)
    loss.backward()
    return loss.detach(), notes, [weight.grad for weight in drafter.parameters() if weight.grad is not None]


def dense(drafter: BlockDrafter, objective: BlockObjective, batch: VlmTeacherBatch) -> Tensor:
    """The loss of whole [blocks, levels, tokens], written out."""
    torch.manual_seed(1)
    anchor, drawn_ = block_objective.draw_anchors(batch.answer, objective.anchors)
    parts, ids = take_apart(tiny("llama")), drafter.vocabulary
    position = torch.arange(24).expand(len(batch.ids), -1)
    standing = block_objective.AnchoredBlocks(batch.ids, anchor, position, torch.zeros_like(position))
    rows = drafter.drafting(block_objective.unroll_anchored_blocks(drafter, parts.embed, standing, batch.hidden))
    total = weights = 0.0
    for b, a in drawn_.nonzero().tolist():
        root, out, losses, q, inside = int(anchor[b, a]), None, [], [], []
        for level in range(drafter.config.drafted):
            place = root + 1 + level
            before = batch.ids[b, min(place - 1, 23)].view(1, 1)
            out = drafter.after(rows[b, a, level].view(1, 1, -1), before, out)
            if place > 23:
                continue
            student = drafter.scores(out[0], parts.head)[0].log_softmax(-1)
            full = parts.head(batch.last[b, place - 1]).float().softmax(-1)
            p, token = full[ids] / full[ids].sum(), int(batch.ids[b, place])
            is_hard, held = objective.terms[0][1] is hard_cross_entropy, token in ids.tolist()
            inside.append(float(held or not is_hard))
            value, chance = torch.zeros(()) if is_hard else -(p * student).sum(), 0.0
            if held:
                row = ids.tolist().index(token)
                chance = float(student[row].detach().exp())
                value = -student[row] if is_hard else value
            if (said := drafter.acceptance(out.detach())) is not None:
                overlap = torch.minimum(student.detach().exp(), full[ids]).sum().view(1, 1)
                value = value + torch.nn.functional.binary_cross_entropy_with_logits(said, overlap)
            losses.append(value)
            q.append(chance)
        count = torch.ones(1, len(q), dtype=torch.bool)
        weight = dpace_weights(torch.tensor([q]), count, objective.alpha)[0]
        if objective.weights == "decay":
            weight = torch.exp(-torch.arange(len(q)) / block_objective.default_gamma(drafter.config.drafted))
        total = total + (weight * torch.stack(losses)).sum()
        weights += (weight * torch.tensor(inside)).sum()
    return total / weights


OBJECTIVES = {
    "soft": BlockObjective(((1.0, cross_entropy),), anchors=6),
    "hard": BlockObjective(((1.0, hard_cross_entropy),), anchors=6, weights="dpace"),
}


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_in_chunks_is_that_of_whole_blocks(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, objective = make(kind), OBJECTIVES[name]
    batch = taught(drafter)
    whole, notes, gradients = loss_of(drafter, objective, batch)
    monkeypatch.setattr(chunked_losses, "CHUNK_SCORES", 5 * VOCAB)
    part, same, found = loss_of(drafter, objective, batch)
    torch.testing.assert_close(part, whole, atol=1e-6, rtol=1e-5)
    for gradient, two in zip(gradients, found, strict=True):
        torch.testing.assert_close(two, gradient, atol=1e-6, rtol=1e-5)
    assert same == notes and 0 < len(found)
    written = dense(drafter, objective, batch)
    torch.testing.assert_close(written.detach(), whole, atol=1e-5, rtol=1e-5)
    drafter.zero_grad()
    written.backward()
    for gradient, two in zip(gradients, [w.grad for w in drafter.parameters() if w.grad is not None], strict=True):
        torch.testing.assert_close(two, gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_outside_are_never_drafted_and_answers_stay_the_targets(kind: str) -> None:
    drafter, model, inputs = make(kind), tiny("llama"), prompt("llama", batch=4)
    run = mmspec.vlm.start(model, drafter=drafter, max_new_tokens=20, do_sample=False, **inputs)
    run.step()
    with torch.no_grad():
        draft = run.state.propose(run.target, run.keys)
        scores = run.state.logits(run.state.root[:, None], 1)[0, 0]
    drafted = draft.value[:, 1:] if draft.valid is None else draft.value[:, 1:][draft.valid[:, 1:]]
    assert set(drafted.flatten().tolist()) <= set(drafter.vocabulary.tolist()) and draft.tree.max_depth > 1
    assert len(scores) == len(drafter.vocabulary) < VOCAB
    out = mmspec.generate(model, drafter=drafter, max_new_tokens=20, do_sample=False, **inputs)
    assert torch.equal(out, model.generate(max_new_tokens=20, do_sample=False, **inputs))


FORMS = {"dspark": Chain(FixedLength(3)), "dspark reduced": DynamicTree(nodes=6, depth=3, width=3)}


@pytest.mark.default_cells("dspark reduced")
@pytest.mark.parametrize("kind", FORMS)
def test_the_sampled_distribution_is_the_targets(kind: str) -> None:
    drafter = make(kind, V, narrow()).with_shape(FORMS[kind])
    tokens, length = drawn(drafter, "exact", LAWS["t1"])
    assert p_value(tokens, exact_law(1.0)) > 1e-3 and length > 1.05


def test_another_distribution_on_record_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    evenly_on_record(monkeypatch)
    tokens, _ = drawn(make("dspark", V, narrow()).with_shape(FORMS["dspark"]), "token", LAWS["t1"])
    assert p_value(tokens, exact_law(1.0)) < 1e-6


def test_a_tied_head_is_not_saved_and_comes_back_with_its_target(tmp_path: Path) -> None:
    drafter, model = make("dspark reduced"), tiny("llama")
    drafter.save_pretrained(tmp_path)
    assert "head.weight" not in drafter.state_dict()
    again = mmspec.vlm.load_drafter(tmp_path, target=model)
    assert again.config == drafter.config and torch.equal(again.head.weight, model.lm_head.weight[ids_of(VOCAB)])
    rows = torch.randn(2, 3, 32)
    torch.testing.assert_close(again.unary(rows, model.lm_head), drafter.unary(rows, model.lm_head))
    torch.testing.assert_close(again.unary(rows, model.lm_head), model.lm_head(rows)[..., ids_of(VOCAB)])
    with pytest.raises(ValueError, match="target: expected the model"):
        type(drafter).from_pretrained(tmp_path).unary(rows, model.lm_head)


def test_another_vocabulary_keeps_the_rows_of_its_tokens() -> None:
    drafter = make("dspark reduced")
    other = drafter.with_vocabulary([2, 3, 5, 11, 40])
    row, known = drafter.columns(torch.tensor([2, 3, 11])), [0, 1, 3]
    for name in ("markov_w1", "markov_w2"):
        mine, its = (getattr(one.markov_head, name).weight for one in (drafter, other))
        torch.testing.assert_close(its[known], mine[row])
    assert torch.equal(other.markov_head.markov_w1.weight[-1], drafter.markov_head.markov_w1.weight[-1])
    assert not other.markov_head.markov_w1.weight[2].any()  # token 5 was outside
    whole = other.with_vocabulary(range(VOCAB))
    assert whole.vocabulary is None and whole.config.draft_vocab_size == 0
    torch.testing.assert_close(whole.markov_head.markov_w2.weight[[2, 40]], other.markov_head.markov_w2.weight[[0, 4]])


def test_tokens_outside_share_a_row_of_the_correction() -> None:
    drafter, row = make("dspark reduced"), torch.randn(1, 1, 32)
    inside, other, outside, more = (drafter.after(row, torch.tensor([[token]]), None) for token in (2, 3, 5, 10))
    assert torch.equal(outside, more) and not torch.equal(inside, other) and not torch.equal(inside, outside)


@pytest.mark.parametrize("kind", ("dflash", "dspark"))
def test_a_new_drafter_trains_on_the_words_of_the_answers(kind: str) -> None:
    model, answers = tiny("llama"), [[9, 9, 30, 30, 4], [9, 50]]
    markov = dict(markov_rank=8, reduced_markov=True) if kind == "dspark" else {}
    drafter = new_drafter(kind, model, num_hidden_layers=1, draft_vocab_size=3, tied_head=True, **markov)
    found, share = fit_vocabulary(drafter, answers, fresh=True)
    assert found.vocabulary.tolist() == [4, 9, 30] and share == pytest.approx(6 / 7)
    assert torch.equal(found.head.weight, model.lm_head.weight[[4, 9, 30]])
    if kind == "dspark":
        assert found.markov_head.markov_w1.weight.shape == (4, 8) and found.markov_head.markov_w2.weight.shape == (3, 8)
    whole = new_drafter(kind, model, num_hidden_layers=1)
    assert fit_vocabulary(whole, answers, fresh=True) == (whole, 1.0)


LEARNT = {
    "dflash": ("dflash", "forward_kl"),
    "dspark": ("dspark", "hard_cross_entropy"),
    "dspark reduced": ("dspark reduced", "total_variation:0.9,cross_entropy:0.1"),
}


@pytest.mark.parametrize("name", LEARNT)
def test_training_learns_the_answers_of_a_batch(name: str) -> None:
    """Every loss stays finite, though the drafter has no score for a fifth of the tokens."""
    torch.manual_seed(0)
    kind, terms = LEARNT[name]
    drafter = make(kind).train().requires_grad_(True)
    batch, optimizer = taught(drafter), torch.optim.AdamW(drafter.parameters(), lr=5e-3)
    assert not set(batch.ids[:, 7:].flatten().tolist()) <= set(drafter.vocabulary.tolist())
    losses = []
    for _ in range(30):
        loss, notes = BlockObjective(terms_of(terms), anchors=8)(drafter, take_apart(tiny("llama")), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(map(math.isfinite, losses)) and losses[-1] < 0.7 * losses[0]
    assert all(0 <= share <= 1 for share in notes.values())


@pytest.mark.parametrize("tied", (False, True))
def test_sizes_are_checked_without_weights(tied: bool) -> None:
    parts = take_apart(tiny("llama"))
    with torch.device("meta"):
        drafter = untrained("dspark", parts, dict(draft_vocab_size=8, tied_head=tied, reduced_markov=True))
    assert drafter.fc.weight.is_meta and drafter.head.weight.is_meta

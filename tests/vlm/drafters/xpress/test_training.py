"""Training of XPress: what its lessons are, what they reach, and what is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mmspec
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.block_unroll import AnchoredBlocks, unroll_anchored_blocks
from mmspec.vlm.drafters.xpress import XPress, XPressConfig
from mmspec.vlm.training.block_objective import BlockObjective, predict_lessons
from mmspec.vlm.training.losses import terms_of
from mmspec.vlm.training.recipes import published_recipe
from tests.vlm.drafters.dflash.test_reduced import taught
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.xpress.test_refiner import run_of
from tests.vlm.tiny import VOCAB, prompt, tiny


def test_the_token_before_the_root_is_the_texts_also_in_drafting() -> None:
    """The levels that training computes behind an anchor are those that a request computes whose root is that token."""
    drafter, model, parts = make("xpress"), tiny("llama"), take_apart(tiny("llama"))
    run = run_of(drafter, do_sample=False)
    with torch.no_grad():
        run.state.propose(run.target, run.keys)
    for row in range(3):
        ids = prompt("llama", batch=3)["input_ids"][row]
        mask = prompt("llama", batch=3)["attention_mask"][row] > 0
        text = torch.cat([ids[mask], torch.tensor(run.target.tokens[row])])[None]
        padded = F.pad(text, (0, 6), value=9)  # what follows the root is not looked at
        batch = teacher_of(drafter, padded)
        anchor = torch.tensor([[text.shape[1] - 1]])
        (_, plain), *_ = predict_lessons(drafter, parts, batch, anchor, anchor > 0)
        student = plain.predict(torch.arange(1)).student[0]
        first = drafter.after(run.state.rows[row : row + 1, :1], text[:, -1:], None)
        torch.testing.assert_close(student, drafter.scores(first[0], model.lm_head)[0], atol=1e-4, rtol=1e-3)


def teacher_of(drafter: XPress, ids: Tensor) -> object:
    from mmspec.vlm.training.teacher import teacher_pass

    answer = torch.arange(ids.shape[1])[None] >= 1
    inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    return teacher_pass(take_apart(tiny("llama")), inputs, answer, drafter.levels)


@torch.no_grad()
def test_lessons_are_the_text_three_rounds_of_own_guesses_and_the_block_alone() -> None:
    """By hand: each round reads the best tokens of the round before, the first those of the block alone."""
    drafter, parts = make("xpress"), take_apart(tiny("llama"))
    drafter.refiner_head.readout.weight.mul_(30)
    batch, anchor = taught(drafter, rows=1), torch.tensor([[8, 12]])
    lessons = predict_lessons(drafter, parts, batch, anchor, anchor > 0)
    assert [weight for weight, _ in lessons] == pytest.approx([1.0, 0.1, 0.1, 0.1, 0.6])
    assert all(bool(lesson.counts.all()) for _, lesson in lessons)
    text, *rounds, plain = (
        torch.zeros(2, 4, VOCAB).index_put(lesson.place, lesson.predict(torch.arange(8)).student)
        for _, lesson in lessons
    )
    place = anchor[0, :, None] + torch.arange(4)  # the tokens before the levels
    blocks_ = AnchoredBlocks(batch.ids, anchor, torch.arange(24)[None], torch.zeros(1, 24, dtype=torch.long))
    rows = unroll_anchored_blocks(drafter, parts.embed, blocks_, batch.hidden)[0]
    levels = drafter.drafting(rows, batch.ids[0][anchor[0] - 1])

    def scored(before: Tensor) -> Tensor:
        out = drafter.walk(levels, before)
        return drafter.scores(out.flatten(0, 1), parts.head).view(2, 4, -1)

    torch.testing.assert_close(text, scored(batch.ids[0][place]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(plain, parts.head(levels[..., :32]), atol=1e-4, rtol=1e-4)
    guess, seen = plain.argmax(-1), []
    for found in rounds:
        expected = scored(torch.cat([batch.ids[0][place[:, :1]], guess[:, :-1]], 1))
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        seen.append(guess)
        guess = expected.argmax(-1)
    assert not torch.equal(seen[0], seen[1])  # the refiner matters


def test_training_lowers_the_loss_and_reaches_every_weight() -> None:
    torch.manual_seed(0)
    drafter, parts = make("xpress").train().requires_grad_(True), take_apart(tiny("llama"))
    batch, optimizer = taught(drafter), torch.optim.AdamW(drafter.parameters(), lr=5e-3)
    objective = BlockObjective(
        terms_of("hard_cross_entropy:0.1,total_variation:0.9"), anchors=8, gamma=4.0, per="place"
    )
    losses = []
    for _ in range(30):
        loss, notes = objective(drafter, parts, batch)
        optimizer.zero_grad()
        loss.backward()
        missed = [name for name, weight in drafter.named_parameters() if weight.grad is None or not weight.grad.any()]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0] and not missed and len(notes) == drafter.config.drafted
    assert published_recipe("xpress", drafter).objective.terms == objective.terms


def test_a_saved_drafter_comes_back(tmp_path: Path) -> None:
    drafter = make("xpress")
    drafter.save_pretrained(tmp_path)
    again = mmspec.vlm.load_drafter(tmp_path, target=tiny("llama"))
    assert again.config == drafter.config
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in drafter.state_dict().items())


def test_a_new_refiner_changes_no_score_and_keeps_the_rows_of_its_tokens() -> None:
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=16, intermediate_size=24, num_attention_heads=4, vocab_size=VOCAB, taps=(0,), mask_token_id=1
    )
    drafter = XPress(XPressConfig(**sizes, block_size=5, refiner_rank=4))
    rows, head = drafter.drafting(torch.randn(1, 5, 16), torch.tensor([3])), nn.Linear(16, VOCAB, bias=False)
    out = drafter.walk(rows, torch.randint(VOCAB, (1, 4)))
    torch.testing.assert_close(drafter.scores(out[0], head), head(rows[0, :, :16]))
    nn.init.normal_(drafter.refiner_head.readout.weight)
    reduced = drafter.with_vocabulary([2, 5, 11])
    assert torch.equal(reduced.refiner_head.readout.weight, drafter.refiner_head.readout.weight[[2, 5, 11]])
    assert torch.equal(reduced.refiner_head.token_embed.weight, drafter.refiner_head.token_embed.weight)

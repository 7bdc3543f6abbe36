"""EAGLE-3: levels, the reduced vocabulary, and training that sees what drafting sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import mmspec
import mmspec.vlm
from mmspec.core.drafting.shapes import DynamicTree
from mmspec.core.round.cache import SlotCache
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.prompt_slots import PromptView
from mmspec.vlm.drafters.eagle3 import Eagle3, Eagle3Config, levels_of
from mmspec.vlm.drafters.reduced_vocabulary import check_token_ids, reduced_vocabulary, vocabulary_share
from mmspec.vlm.training.losses import cross_entropy
from mmspec.vlm.training.objective import Objective, predictions
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.trained import make
from tests.vlm.drafters.watched import Watched
from tests.vlm.tiny import HIDDEN, IMAGE, VOCAB, prompt, tiny

CONFIG = Eagle3Config(HIDDEN, 48, 4, VOCAB, levels=(0, 1, 1), num_key_value_heads=2)


@pytest.mark.parametrize(
    "layers, levels",
    ((32, (2, 16, 29)), (8, (2, 4, 5)), (7, (2, 3, 4)), (4, (1, 2, 3)), (2, (0, 0, 1)), (1, (0, 0, 0))),
)
def test_levels_are_low_middle_and_high(layers: int, levels: tuple[int, ...]) -> None:
    assert levels_of(layers) == levels
    assert all(0 <= level < layers for level in levels)


def test_the_fusing_layer_reads_the_states_that_enter_its_levels() -> None:
    model, inputs = tiny("llama"), prompt("llama")
    states = model(**inputs, output_hidden_states=True).hidden_states
    teacher_batch = teacher_pass(take_apart(model), inputs, torch.zeros_like(inputs["input_ids"]).bool(), (0, 1, 1))
    torch.testing.assert_close(teacher_batch.hidden, torch.cat([states[0], states[1], states[1]], -1))
    torch.testing.assert_close(teacher_batch.last, states[-1])


def test_states_of_another_width_are_refused() -> None:
    view = PromptView(*torch.randn(2, 1, 4, HIDDEN), torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="levels .* width 96, got width 32"):
        make("eagle3").read(view)


def test_only_tokens_of_the_reduced_vocabulary_are_drafted() -> None:
    drafter = make("eagle3")
    watched = Watched(drafter.with_shape(DynamicTree(nodes=12, depth=3, width=4)))
    mmspec.generate(tiny("llava"), drafter=watched, max_new_tokens=12, do_sample=False, **prompt("llava", 1, batch=4))
    for seen in watched.rounds:
        drafted = (
            seen.draft.value[:, 1:] if seen.draft.valid is None else seen.draft.value[:, 1:][seen.draft.valid[:, 1:]]
        )
        assert drafter.head.t2d[drafted].all() and not (drafted == IMAGE).any()


@pytest.mark.parametrize("normed", (False, True))
def test_the_unrolled_training_pass_matches_drafting(normed: bool) -> None:
    torch.manual_seed(1)
    drafter = Eagle3(Eagle3Config(HIDDEN, 48, 4, VOCAB, levels=(0, 1, 1), norm_before_residual=normed)).requires_grad_(
        False
    )
    count, root, first = 10, 5, 2
    embeds, hidden = torch.randn(1, count, HIDDEN), torch.randn(1, count, 3 * HIDDEN)
    view = PromptView(embeds, hidden, torch.zeros(1, count, dtype=torch.long))
    outputs = drafter.unroll(drafter.read(view), view, first, depths=4)
    rotary = drafter.layer.rotary(count, embeds.device, embeds.dtype)[None]
    cache = SlotCache(1, count)
    fused = drafter.fuse(embeds[:, : root + 1], hidden[:, : root + 1])
    before = drafter(*fused, rotary[:, : root + 1], cache, None)[:, -1:]
    cache.advance(root + 1)
    for depth in range(4):
        at = root + depth
        if depth:
            fused = drafter.fuse(embeds[:, at : at + 1], before)
            before = drafter(*fused, rotary[:, at : at + 1], cache, torch.zeros(1, 1, 1, at + 1))
            cache.advance(1)
        torch.testing.assert_close(outputs[depth][:, at - first], before[:, 0])


def teacher_batch_on(drafter: Eagle3):
    inputs = prompt("llava", 1)
    ids = tiny("llava").generate(**inputs, max_new_tokens=30, do_sample=False)
    mask = torch.ones_like(ids)
    answer = torch.arange(ids.shape[1])[None] >= ids.shape[1] - 30
    return teacher_pass(
        take_apart(tiny("llava")), dict(inputs, input_ids=ids, attention_mask=mask), answer, drafter.levels
    )


def test_guesses_compare_the_reduced_vocabulary_at_every_place() -> None:
    torch.manual_seed(0)
    whole, parts = Eagle3(CONFIG), take_apart(tiny("llava"))
    teacher_batch = teacher_batch_on(whole)
    drafter = whole.with_vocabulary(range(1, VOCAB, 2))
    for full, part in zip(
        predictions(whole, parts, teacher_batch, 3), predictions(drafter, parts, teacher_batch, 3), strict=True
    ):
        full, part = full.whole(), part.whole()
        assert 0 < int((full.teacher.argmax(-1) % 2 == 1).sum()) < len(full.student)  # some best tokens are left out
        torch.testing.assert_close(part.student, full.student[:, 1::2])
        torch.testing.assert_close(part.teacher, full.teacher[:, 1::2])
        assert torch.equal(part.token, torch.where(full.token % 2 == 1, full.token // 2, -100))
        assert part.feature is None and part.truth is None


def test_a_few_steps_of_training_lower_the_loss() -> None:
    torch.manual_seed(0)
    parts = take_apart(tiny("llava"))
    drafter = Eagle3(CONFIG).start_from(parts)
    assert torch.equal(drafter.head.weight, parts.head.weight) and torch.equal(
        drafter.norm.weight, parts.decoder.norm.weight
    )
    teacher_batch = teacher_batch_on(drafter)
    answer = teacher_batch.ids[teacher_batch.answer].tolist()
    drafter = drafter.with_answers([answer], most=25)
    assert drafter.config.draft_vocab_size == len(drafter.head.ids) == 25
    assert len(set(answer)) > 25 or set(answer) <= set(drafter.head.ids.tolist())
    torch.testing.assert_close(drafter.head.weight, parts.head.weight[drafter.head.ids])
    objective, losses = Objective(((1.0, cross_entropy),), depths=4, decay=0.8), []
    optimizer = torch.optim.Adam(drafter.parameters(), 3e-3)
    for _ in range(40):
        loss, notes = objective(drafter, parts, teacher_batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0] and notes["hit0"] > 0.5


def test_a_chosen_vocabulary_keeps_the_rows_it_had() -> None:
    torch.manual_seed(0)
    whole = Eagle3(CONFIG).eval().requires_grad_(False)
    part = whole.with_vocabulary([3, 5, 8, 50])
    assert part.head.d2t.tolist() == [3, 4, 6, 47] and part.head.t2d.nonzero()[:, 0].tolist() == [3, 5, 8, 50]
    out = torch.randn(2, 3, HIDDEN)
    full, kept = (drafter.logits(out, 1, None) for drafter in (whole, part))
    torch.testing.assert_close(kept[..., part.head.ids], full[..., part.head.ids])
    assert int(kept.isfinite().sum()) == 2 * 3 * 4
    other = part.with_vocabulary([5, 7])
    torch.testing.assert_close(other.head.weight[0], whole.head.weight[5])
    assert part.with_vocabulary(range(VOCAB)).config.draft_vocab_size == 0
    assert not part.training and not part.fc.weight.requires_grad
    assert torch.equal(part.fc.weight, whole.fc.weight)


def test_a_vocabulary_chosen_late_starts_from_the_targets_head_too() -> None:
    parts = take_apart(tiny("llava"))
    drafter = Eagle3(replace(CONFIG, draft_vocab_size=4)).start_from(parts)
    torch.testing.assert_close(drafter.head.weight, parts.head.weight[:4])
    chosen = drafter.with_answers([[90, 90, 2, 2, 50, 50, 70, 70, 5]])
    assert chosen.head.ids.tolist() == [2, 50, 70, 90]
    torch.testing.assert_close(chosen.head.weight, parts.head.weight[[2, 50, 70, 90]])
    assert chosen.state_dict().keys() == drafter.state_dict().keys()


def test_saving_in_half_precision_keeps_every_id(tmp_path) -> None:
    vocab = 70000
    drafter = Eagle3(Eagle3Config(8, 8, 2, vocab, levels=(0, 1, 2))).with_vocabulary([1, 2049, 4099, 69999])
    drafter.save_pretrained(tmp_path, dtype=torch.float16)
    again = Eagle3.from_pretrained(tmp_path)
    assert again.config == drafter.config and again.levels == (0, 1, 2)
    assert again.head.ids.tolist() == [1, 2049, 4099, 69999] and again.head.t2d.dtype == torch.bool


def test_the_vocabulary_is_the_answers_most_frequent_tokens() -> None:
    answers = [[7, 7, 7, 3, 90], [3, 3, 9, 4, 97]]
    chosen = reduced_vocabulary(answers, VOCAB, 4, always=(2,), never=(97,))
    assert chosen == (2, 3, 4, 7)  # 4 and 9 tie, the smaller stays
    assert vocabulary_share(chosen, answers) == 7 / 10
    assert reduced_vocabulary(answers, VOCAB, 9) == (0, 1, 2, 3, 4, 7, 9, 90, 97)  # filled up by the smallest ids
    assert reduced_vocabulary(answers, VOCAB, 1000) == tuple(range(VOCAB))


@pytest.mark.parametrize(
    "options, message",
    (
        (dict(answers=[[101]], most=4), "answers: expected token ids from 0 to 100"),
        (dict(answers=[[1]], most=4, always=(5,), never=(5,)), "always"),
        (dict(answers=[[1]], most=1, always=(5, 6)), "most"),
        (dict(answers=[[1]], most=4, never=range(VOCAB)), "at least one token"),
    ),
)
def test_impossible_vocabularies_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reduced_vocabulary(vocab_size=VOCAB, **options)


@pytest.mark.parametrize("ids", ([], [2, 1], [1, 1], [-1, 2], [0, 9]))
def test_ids_that_do_not_rise_or_are_no_tokens_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="ids: expected"):
        check_token_ids(ids, 9, len(ids))


@pytest.mark.parametrize(
    "change", (dict(levels=(1,)), dict(levels=(-1, 2)), dict(draft_vocab_size=VOCAB + 1), dict(levels=()))
)
def test_impossible_configs_are_refused(change: dict) -> None:
    sizes = dict(hidden_size=HIDDEN, intermediate_size=48, num_attention_heads=4, vocab_size=VOCAB, levels=(0, 1))
    with pytest.raises(ValueError, match="expected"):
        Eagle3Config(**{**sizes, **change})


def test_a_tied_head_scores_with_the_targets_rows_and_is_not_saved(tmp_path) -> None:
    torch.manual_seed(0)
    parts = take_apart(tiny("llava"))
    tied = Eagle3(replace(CONFIG, tied_head=True)).start_from(parts).with_vocabulary([3, 5, 8, 50])
    assert "head.weight" not in tied.state_dict() and not any(
        name == "head.weight" for name, _ in tied.named_parameters()
    )
    assert torch.equal(tied.head.weight, parts.head.weight[[3, 5, 8, 50]])
    own = Eagle3(CONFIG).with_vocabulary([3, 5, 8, 50])
    own.load_state_dict(tied.state_dict() | {"head.weight": tied.head.weight})
    out = torch.randn(2, 3, HIDDEN)
    assert torch.equal(own.logits(out, 1, None), tied.logits(out, 1, None))
    tied.save_pretrained(tmp_path)
    again = mmspec.vlm.load_drafter(tmp_path, target=tiny("llava"))
    assert torch.equal(again.logits(out, 1, None), tied.logits(out, 1, None))
    with pytest.raises(ValueError, match="^target: expected the model whose head"):
        Eagle3.from_pretrained(tmp_path).logits(out, 1, None)
    model, inputs = tiny("llava"), prompt("llava")
    untied, found = Eagle3.from_pretrained(tmp_path), []
    for drafter in (untied, again):
        found.append(mmspec.generate(model, drafter=drafter, max_new_tokens=8, do_sample=False, **inputs))
    assert torch.equal(*found) and torch.equal(untied.head.weight, again.head.weight)  # rows come with the first target

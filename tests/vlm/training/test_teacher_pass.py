"""Padded teacher batches: noise and cuts treat a row as they do the same row alone."""

from __future__ import annotations

import torch
from torch import Tensor

import mmspec
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.base.committed_keys import recorded_keys
from mmspec.vlm.hidden_states import LastKeys
from mmspec.vlm.training.teacher import VlmTeacherBatch, shifted_positions, teacher_pass, truncate_rows
from tests.vlm.tiny import prompt, tiny

LENGTHS, WIDE, ANSWERS = (12, 5, 8), 14, (4, 3, 2)


def padded() -> VlmTeacherBatch:
    """Three rows of 12, 5 and 8 tokens, numbered from 1 in each, padded on the left to the longest prompt and on the right
    to the longest answer as batches of requests are; states say which token they are of."""
    prompts = [length - answer for length, answer in zip(LENGTHS, ANSWERS, strict=True)]
    ids, answer = torch.zeros(3, WIDE, dtype=torch.long), torch.zeros(3, WIDE, dtype=torch.bool)
    for row, (before, behind) in enumerate(zip(prompts, ANSWERS, strict=True)):
        first = max(prompts) - before
        ids[row, first : first + before + behind] = torch.arange(1, before + behind + 1)
        answer[row, max(prompts) : max(prompts) + behind] = True
    states = ids[..., None].float().expand(-1, -1, 4).clone()
    return VlmTeacherBatch(ids, answer, -states, states, states, ids == 0)


def rows_of(teacher_batch: VlmTeacherBatch, field: Tensor) -> list[list]:
    """Row by row, what stands at real tokens."""
    real = torch.ones_like(teacher_batch.answer) if teacher_batch.padding is None else ~teacher_batch.padding
    return [row[there].tolist() for row, there in zip(field, real, strict=True)]


def test_a_cut_keeps_the_first_tokens_of_every_row() -> None:
    whole = padded()
    short = truncate_rows(whole, 6)
    assert rows_of(short, short.ids) == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]]
    assert short.ids.shape[1] == 6
    before = rows_of(whole, whole.answer)
    assert rows_of(short, short.answer) == [row[:6] for row in before]
    for field in (short.embeds, short.last):
        assert torch.equal(field.abs()[..., 0].long(), short.ids)
    assert short.hidden is short.last
    assert torch.equal(short.padding, short.ids == 0)


def test_a_cut_without_padding_left_has_none() -> None:
    assert truncate_rows(padded(), 5).padding is None
    assert truncate_rows(padded(), WIDE).padding is not None
    plain = padded()
    plain.padding, plain.hidden = None, torch.cat([plain.last, plain.last], -1)
    short = truncate_rows(plain, 3)
    assert short.padding is None and torch.equal(short.ids, plain.ids[:, :3]) and short.hidden.shape == (3, 3, 8)


def test_noise_is_as_wide_in_a_padded_row_as_in_the_row_alone() -> None:
    teacher_batch = padded()
    teacher_batch.hidden = torch.zeros(3, WIDE, 4000)
    spread = teacher_batch.with_noise(0.2).hidden.abs().amax((1, 2))
    expected = torch.tensor([0.1 * 512 / length for length in LENGTHS])
    torch.testing.assert_close(spread, expected, rtol=1e-3, atol=0)
    teacher_batch.padding = None
    spread = teacher_batch.with_noise(0.2).hidden.abs().amax((1, 2))
    torch.testing.assert_close(spread, torch.full((3,), 0.1 * 512 / WIDE), rtol=1e-3, atol=0)


def test_noise_leaves_the_training_targets_unchanged() -> None:
    teacher_batch = padded()
    noisy = teacher_batch.with_noise(0.2)
    assert torch.equal(noisy.last, teacher_batch.last) and not torch.equal(noisy.hidden, noisy.last)


def test_moved_positions_keep_the_first_tokens_and_all_other_distances() -> None:
    ids, position = torch.arange(40).reshape(2, 20), torch.arange(20).expand(2, -1)
    moved = shifted_positions(position, ids, 3000)
    assert torch.equal(moved, shifted_positions(position, ids, 3000))  # a resumed run sees the same positions
    steps = moved.diff(dim=-1)
    assert int((steps != 1).sum(1).max()) <= 1 and torch.equal(moved[0], moved[1])
    assert not torch.equal(moved, position) and int(moved.max()) <= 3000
    several = {int(shifted_positions(position, ids + n, 3000).max()) for n in range(8)}
    assert len(several) > 4
    axes = position.expand(3, 2, -1)
    assert torch.equal(shifted_positions(axes, ids, 3000), moved.expand(3, 2, -1))
    assert shifted_positions(position, ids, 19) is position and shifted_positions(position, ids, 0) is position


def test_recorded_keys_are_those_that_the_target_caches() -> None:
    model, inputs = tiny("qwen2_5_vl"), prompt("qwen2_5_vl", 1)
    parts = take_apart(model)
    batch = teacher_pass(parts, inputs, torch.zeros_like(inputs["input_ids"], dtype=torch.bool), (LastKeys(),))
    keys, values, _ = recorded_keys(batch.hidden, 8)
    run = mmspec.vlm.start(model, max_new_tokens=4, do_sample=False, **inputs)
    run.step()
    for recorded, cached in zip((keys, values), run.target.cache.at(1), strict=True):
        torch.testing.assert_close(recorded, cached[:, :, : keys.shape[2]], atol=1e-5, rtol=1e-5)


def test_moved_positions_stay_below_the_last_thousand_of_the_target() -> None:
    parts, inputs = take_apart(tiny("llama")), prompt("llama")
    answer = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    count = inputs["input_ids"].shape[1]
    plain, moved = (teacher_pass(parts, inputs, answer, shift=shift).place for shift in (0, 30_000))
    assert parts.most_positions == 1024 and int(plain.max()) == count - 1 < int(moved.max()) <= 24

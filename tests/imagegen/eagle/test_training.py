"""A drafter that has seen the target drafts longer; training steps are pure; files hold what was trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmspec import imagegen
from mmspec.imagegen.eagle.image_eagle import ImageEagle
from mmspec.imagegen.eagle.training import EagleLoss, image_eagle_loss, teacher_pass
from mmspec.imagegen.pipeline import ImagePipeline
from tests.imagegen.eagle.small import CHAIN, drafter_for, lined
from tests.imagegen.tiny import ColourTable, TableModel, TinyModel, generate

LABELS = torch.arange(10) % 5


def batches(model: ColourTable, seed: int = 0):
    values = generate(model, LABELS.tolist(), seed=seed).tokens
    return lambda step: (LABELS, values)


def accept_length(model: TinyModel, drafter: ImageEagle) -> float:
    drafter = drafter.with_shape(CHAIN)
    return generate(model, LABELS.tolist(), drafter, guidance_scale=2.0, seed=1).stats.accept_length


def test_thirty_steps_increase_the_accept_length() -> None:
    model = TinyModel()
    drafter = drafter_for(model)
    untrained = accept_length(model, drafter)
    loss = image_eagle_loss(
        drafter, model, batches(model), EagleLoss(words=1.0, depths=2, noise=0, guided_share=0.5, guidance=2)
    )
    drafter.train().requires_grad_(True)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=5e-3)
    for step in range(30):
        value, notes = loss(step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert notes["overlap0"] > 0.6
    assert accept_length(model, drafter.eval().requires_grad_(False)) > untrained + 0.3


@pytest.mark.parametrize("loss", [EagleLoss(), EagleLoss(unconditional=0), EagleLoss(guided_share=1.0, depths=2)])
def test_a_step_is_a_pure_function_and_reaches_every_weight(loss: EagleLoss) -> None:
    model = TinyModel()
    drafter = drafter_for(model).train().requires_grad_(True)
    of = image_eagle_loss(drafter, model, batches(model), loss)
    first, again = of(3)[0], of(3)[0]
    assert torch.equal(first, again)
    first.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in drafter.parameters())


def test_the_teacher_is_the_target() -> None:
    model = TinyModel()
    values = generate(model, [0, 1], temperature=0, guidance_scale=1).tokens
    teacher_batch = teacher_pass(model, torch.tensor([0, 1]), values, paired=True)
    assert torch.equal(teacher_batch.logits[:2].argmax(-1), values[:, 1:])
    assert teacher_batch.padding is not None and teacher_batch.padding.tolist() == [[False, False], [True, False]] * 2


def test_shares_weigh_the_branches() -> None:
    model = TinyModel()
    drafter = drafter_for(model)
    parts: list[Tensor] = []
    for share in (0.0, 0.25, 1.0):
        # a share of guided words of weight 0 keeps both branches running
        settings = EagleLoss(noise=0, words=0, unconditional=share, guided_share=0.5)
        parts.append(image_eagle_loss(drafter, model, batches(model), settings)(0)[0])
    assert torch.allclose(parts[1], 0.75 * parts[0] + 0.25 * parts[2])


def test_files_hold_the_drafter(tmp_path: Path) -> None:
    model = TinyModel()
    drafter = drafter_for(model)
    drafter.save_pretrained(tmp_path / "eagle")
    back = imagegen.load_drafter(tmp_path / "eagle", target=ImagePipeline(model))
    assert back.config == drafter.config
    assert all(torch.equal(a, b) for a, b in zip(drafter.parameters(), back.parameters(), strict=True))


def test_mismatched_targets_folders_and_values_are_refused(tmp_path: Path) -> None:
    model = TinyModel()
    drafter_for(model).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected vocab_size 14 as in the target, got 16"):
        imagegen.load_drafter(tmp_path, target=lined())
    with pytest.raises(ValueError, match="expected a target that returns its hidden states"):
        generate(TableModel(), [0], drafter_for(model))
    with pytest.raises(ValueError, match="expected a folder or a hub id"):
        imagegen.load_drafter(tmp_path / "nothing" / "here")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"kind": "eagle2"}))
    with pytest.raises(ValueError, match="expected a kind of .'image_eagle'., got 'eagle2'"):
        imagegen.load_drafter(tmp_path)
    with pytest.raises(ValueError, match="values: expected .B, 16."):
        teacher_pass(model, LABELS[:1], torch.zeros(1, 9, dtype=torch.long), paired=False)

"""DFlash over pooled pictures: fewer rows of context, nothing else of a request changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.vlm.admission import take_apart
from mmspec.vlm.drafters.dflash import DFlash
from mmspec.vlm.training.block_objective import BlockObjective
from mmspec.vlm.training.teacher import teacher_pass
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny

LATENTS, TOKENS = 3, 4  # rows and tokens of a picture of the tiny LLaVA


def rows_of(name: str, inputs: dict) -> list[int]:
    """Context rows behind the first round of a request."""
    run = mmspec.vlm.start(tiny("llava"), drafter=make(name), max_new_tokens=6, do_sample=False, **inputs)
    run.step()
    with torch.no_grad():
        run.state.propose(run.target, run.keys)
    return run.state.cache.length.tolist()


def test_a_picture_takes_as_many_rows_as_it_is_pooled_into() -> None:
    inputs = prompt("llava", 2, batch=4)  # rows of 2, 0, 1 and 2 pictures
    whole, pooled = rows_of("dflash", inputs), rows_of("dflash_with_vision", inputs)
    less = [a - b for a, b in zip(whole, pooled, strict=True)]
    assert less == [count * (TOKENS - LATENTS) for count in (2, 0, 1, 2)]


def test_without_pictures_it_is_the_drafter_without_a_pool() -> None:
    pooled = make("dflash_with_vision")
    plain = DFlash(replace(pooled.config, latents=0)).eval()
    plain.load_state_dict({name: value for name, value in pooled.state_dict().items() if name != "pool.latents"})
    inputs, options = prompt("llava", 0, batch=4), dict(max_new_tokens=12, do_sample=False, return_dict=True)
    one, two = (mmspec.generate(tiny("llava"), drafter=d, **inputs, **options) for d in (plain, pooled))
    assert one.stats.accepted == two.stats.accepted and torch.equal(one.sequences, two.sequences)


def test_the_pool_is_trained_and_saved(tmp_path: Path) -> None:
    drafter, parts = make("dflash_with_vision").train().requires_grad_(True), take_apart(tiny("llava"))
    inputs = prompt("llava", 1)
    answer = (torch.arange(inputs["input_ids"].shape[1]) >= inputs["input_ids"].shape[1] - 4)[None]
    loss, _ = BlockObjective(anchors=4)(drafter, parts, teacher_pass(parts, inputs, answer, drafter.levels))
    loss.backward()
    assert bool(drafter.pool.latents.grad.any())
    drafter.save_pretrained(tmp_path)
    again = mmspec.vlm.load_drafter(tmp_path, target=tiny("llava"))
    assert again.config == drafter.config and torch.equal(again.pool.latents, drafter.pool.latents)
    with pytest.raises(ValueError, match="latents: expected"):
        replace(drafter.config, latents=-1)

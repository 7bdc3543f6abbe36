"""Captured rounds on the shipped model, with a drafter whose drafts are kept: the ordinary loop's tokens."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.length.controls import FixedLength
from mmspec.evaluate.vlm.requests import held_out
from mmspec.run.vlm_requests import encode
from mmspec.vlm import Rounds
from mmspec.vlm.drafters import Chain

SETTINGS = {"greedy": dict(do_sample=False), "sampled": dict(do_sample=True, temperature=1.0, top_p=0.95, seed=2)}


@pytest.mark.default_cells("sampled-4")
@pytest.mark.parametrize("batch", (1, 4))
@pytest.mark.parametrize("name", SETTINGS)
def test_captions(name: str, batch: int) -> None:
    model, processor = mmspec.zoo.load("vlm")
    inputs = encode(processor, held_out(batch)) | dict(
        drafter=mmspec.zoo.load("vlm/msd").with_shape(Chain(FixedLength(5)))
    )
    asked = dict(model=model, max_new_tokens=40, return_dict=True, **SETTINGS[name], **inputs)
    ordinary, captured = (mmspec.generate(**asked, capture=capture) for capture in (False, Rounds(late=1)))
    assert torch.equal(ordinary.sequences, captured.sequences)
    assert ordinary.stats.accepted == captured.stats.accepted and captured.stats.accept_length > 1.8

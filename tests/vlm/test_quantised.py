"""Targets with weights of eight bits give the words of their own `generate`."""

from __future__ import annotations

import copy

import pytest
import torch

import mmspec
from tests.vlm.drafters.trained import make
from tests.vlm.drafts import SHAPES, Scripted, continuation
from tests.vlm.tiny import prompt, tiny

GREEDY = dict(max_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("batch", (1, 4))
def test_a_model_of_int8_weights_gives_its_own_words(batch: int) -> None:
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = copy.deepcopy(tiny("llava"))
    torchao.quantize_(model.model.language_model, torchao.Int8WeightOnlyConfig())
    inputs = prompt("llava", 2, batch=batch)
    truth = model.generate(**inputs, **GREEDY)
    length = inputs["input_ids"].shape[1]
    for shape in SHAPES:
        drafter = Scripted(continuation(truth, length), shape)
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **GREEDY), truth), shape
    assert torch.equal(mmspec.generate(model, drafter=make("msd"), **inputs, **GREEDY), truth)

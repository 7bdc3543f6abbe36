"""A drafter works on a target of another precision, and stays what it was."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.drafting.shapes import Chain
from mmspec.core.layers.fingerprint import module_like
from mmspec.core.length.goodput import Goodput
from mmspec.vlm.drafters.specdecpp import AcceptanceConfig, AcceptanceHead, AcceptanceStop
from mmspec.vlm.drafters.viskip import VisionSkip
from tests.vlm.drafters.trained import DRAFTERS, make
from tests.vlm.tiny import HIDDEN, prompt, tiny

HALF = (torch.bfloat16, torch.float16)


def answers(dtype: torch.dtype, drafter: object, sample: bool) -> tuple[torch.Tensor, list]:
    inputs = dict(prompt("llava", images=1, batch=4), max_new_tokens=16, do_sample=sample, seed=[1, 2, 3, 4])
    out = mmspec.generate(tiny("llava", dtype=dtype), drafter=drafter, return_dict=True, **inputs)
    return out.sequences, out.stats.accepted


@pytest.mark.default_cells(
    "eagle3-torch.float16-sampled",
    "flash-torch.bfloat16-greedy",
    "dflash-torch.float16-sampled",
    "dspark-torch.bfloat16-greedy",
)
@pytest.mark.parametrize("sample", (False, True), ids=("greedy", "sampled"))
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_full_precision_drafter_drafts_as_its_half_precision_copy(
    name: str, dtype: torch.dtype, sample: bool
) -> None:
    drafter = make(name)
    before = {key: value.clone() for key, value in drafter.state_dict().items()}
    found, accepted = answers(dtype, drafter, sample)
    words, kept = answers(dtype, copy.deepcopy(drafter).to(dtype), sample)
    assert torch.equal(found, words) and accepted == kept
    for key, value in drafter.state_dict().items():
        assert value.dtype == before[key].dtype and torch.equal(value, before[key])


def test_wrapped_drafters_and_their_heads_follow_too() -> None:
    torch.manual_seed(0)
    head = AcceptanceHead(AcceptanceConfig(HIDDEN)).eval().requires_grad_(False)
    stops = make("msd").with_shape(Chain(AcceptanceStop(head, threshold=0.9)))
    for drafter in (stops, VisionSkip(stops, threshold=1.0), Goodput(VisionSkip(make("msd")))):
        answers(torch.bfloat16, drafter, sample=True)
    assert head.judge.weight.dtype == torch.float32


def test_a_copy_is_made_once_and_again_when_weights_change() -> None:
    drafter, like = make("eagle"), torch.zeros(1, dtype=torch.bfloat16)
    assert module_like(drafter, torch.zeros(1)) is drafter
    first, second = module_like(drafter, like), module_like(drafter, like)
    assert first.fc.weight.data_ptr() == second.fc.weight.data_ptr() and first.fc.weight.dtype == torch.bfloat16
    drafter.fc.weight.mul_(2)
    assert torch.equal(module_like(drafter, like).fc.weight, drafter.fc.weight.bfloat16())
    shaped = drafter.with_shape(Chain())
    assert module_like(shaped, like).shapes == shaped.shapes and module_like(drafter, like).shapes == drafter.shapes


def test_a_copy_goes_with_its_module_and_keeps_integers() -> None:
    module = nn.BatchNorm1d(3)
    like = torch.zeros(1, dtype=torch.float16)
    assert module_like(module, like).num_batches_tracked.dtype == torch.long
    kept = weakref.ref(module_like(module, like).weight)
    del module
    gc.collect()
    assert kept() is None

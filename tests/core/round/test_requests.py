"""Requests on one model do not know of one another, and neither do the rows of a batch."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.vlm.drafters import PromptLookup, SmallModel, TokenRecycling
from tests.vlm.drafts import Bigram, Scripted, continuation
from tests.vlm.tiny import VOCAB, prompt, tiny

STEPS = 16
TREE = (0, 0, 0, 1, 1, 2)


def bigram() -> Bigram:
    return Bigram(torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(7)), TREE)


def requests_on(kind: str) -> list[dict[str, Any]]:
    """Seven requests with different prompts, pictures, drafters and ways of choosing."""
    inputs = [
        prompt(kind, images, batch=batch, seed=seed)
        for seed, (images, batch) in enumerate(((1, 1), (0, 4), (3, 1), (1, 4)))
    ]
    truth = tiny(kind).generate(**inputs[3], max_new_tokens=STEPS)
    scripted = Scripted(continuation(truth, inputs[3]["input_ids"].shape[1]), "dynamic")
    sampled = dict(do_sample=True, temperature=0.8, top_p=0.9)
    return [
        dict(inputs[0], drafter=SmallModel(tiny("mistral"))),
        dict(inputs[0], drafter=SmallModel(tiny("mistral")), seed=3, **sampled),
        dict(inputs[1], drafter=TokenRecycling(), seed=4, **sampled),
        dict(inputs[2], drafter=PromptLookup(), repetition_penalty=1.2),
        dict(inputs[3], drafter=scripted),
        dict(inputs[3], drafter=bigram(), seed=[9, 8, 7, 6], **sampled),
        dict(inputs[2], seed=5, **sampled),
    ]


@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl"))
def test_interleaved_requests_equal_isolated_requests(kind: str) -> None:
    requests = requests_on(kind)
    alone = []
    for request in requests:
        decoding = mmspec.vlm.start(tiny(kind), **request, max_new_tokens=STEPS)
        decoding.run()
        alone.append(decoding.target.tokens)
    order = random.Random(1)
    running = {i: mmspec.vlm.start(tiny(kind), **r, max_new_tokens=STEPS) for i, r in enumerate(requests)}
    together = {}
    while running:
        i = order.choice(list(running))
        if not running[i].step():
            together[i] = running.pop(i).target.tokens
    assert [together[i] for i in range(len(requests))] == alone


def test_threads_equal_isolated_requests() -> None:
    requests = requests_on("llava")

    def run(request: dict[str, Any]) -> list[list[int]]:
        return mmspec.generate(tiny("llava"), **request, max_new_tokens=STEPS).tolist()

    alone = [run(request) for request in requests]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, requests)) == alone


def row_alone(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    keep = inputs["attention_mask"][row].bool()
    alone = {"input_ids": inputs["input_ids"][row : row + 1, keep]}
    if row != 1:  # rows 0, 2 and 3 hold one picture each
        alone["pixel_values"] = inputs["pixel_values"][max(row - 1, 0)][None]
    return alone


@pytest.mark.parametrize(
    "drafter", (None, PromptLookup(), TokenRecycling(), "small", bigram()), ids=lambda d: getattr(d, "name", d)
)
def test_a_row_is_the_same_alone_and_in_a_batch(drafter: object) -> None:
    drafter = SmallModel(tiny("mistral", dtype=torch.float64)) if drafter == "small" else drafter
    model = tiny("llava", dtype=torch.float64)
    inputs = prompt("llava", 1, batch=4, seed=5)
    inputs["pixel_values"] = inputs["pixel_values"].double()
    settings = dict(
        drafter=drafter, do_sample=True, temperature=0.9, top_k=20, max_new_tokens=STEPS, eos_token_id=list(range(0, 9))
    )
    together = mmspec.generate(model, **inputs, **settings, seed=[1, 2, 3, 4], return_dict=True)
    for row in range(4):
        alone = mmspec.generate(model, **row_alone(inputs, row), **settings, seed=[row + 1], return_dict=True)
        count = alone.stats.emitted[0]
        assert together.stats.emitted[row] == count
        assert together.sequences[row, -together.sequences.shape[1] + inputs["input_ids"].shape[1] :][
            :count
        ].tolist() == (alone.sequences[0, -count:].tolist())


def test_seeds_decide() -> None:
    inputs = dict(prompt("llava", 1, seed=6), do_sample=True, max_new_tokens=STEPS)
    first, again, other = (mmspec.generate(tiny("llava"), **inputs, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    torch.manual_seed(1)
    unseeded = mmspec.generate(tiny("llava"), **inputs)
    assert not torch.equal(unseeded, mmspec.generate(tiny("llava"), **inputs))
    with pytest.raises(ValueError, match="seed: expected one int or 1 ints"):
        mmspec.generate(tiny("llava"), **inputs, seed=[1, 2])

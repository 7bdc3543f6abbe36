"""The shipped model says the same words with every drafter as transformers says without one."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.core.drafting.shapes import Chain, DynamicTree, StaticTree
from mmspec.core.length.controls import ConfidenceStop
from mmspec.evaluate.vlm.requests import held_out
from mmspec.run.vlm_requests import encode
from tests.zoo.drafters import drafters_of

PROMPTS, BATCH, TOKENS = (4, 100), 20, 48  # prompts of the default lane, and of the whole one


def drafter_of(name: str) -> object:
    if name.startswith("vlm/"):
        return mmspec.zoo.load(name)
    if name.startswith("eagle"):
        shape = {"tree": DynamicTree(), "static": StaticTree(), "chain": Chain(ConfidenceStop())}[name[6:]]
        return mmspec.zoo.load("vlm/eagle").with_shape(shape)
    if name == "small":
        return mmspec.drafters.SmallModel(mmspec.zoo.load("vlm/small")[0])
    return {"none": lambda: None, "lookup": mmspec.drafters.PromptLookup, "recycling": mmspec.drafters.TokenRecycling}[
        name
    ]()


@pytest.fixture(scope="module", params=(PROMPTS[0], pytest.param(PROMPTS[1], marks=pytest.mark.whole)), ids=str)
def references(request: pytest.FixtureRequest) -> tuple:
    """The model, and per batch of held-out prompts its inputs and transformers' own greedy continuation."""
    model, processor = mmspec.zoo.load("vlm")
    prompts = held_out(request.param)
    cases = [encode(processor, prompts[i : i + BATCH]) for i in range(0, request.param, BATCH)]
    return model, [(case, model.generate(**case, max_new_tokens=TOKENS, do_sample=False)) for case in cases]


TRAINED = tuple(name for name in drafters_of("vlm") if name in mmspec.zoo.names())
OTHERS = ("none", "eagle-tree", "eagle-static", "eagle-chain", "lookup", "recycling", "small")
SHAPED = ("eagle-static", "eagle-chain")  # EAGLE's drafts of other shapes


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.whole) if n in SHAPED else n for n in OTHERS + TRAINED]
)
def test_held_out_prompts(references: tuple, name: str) -> None:
    (model, cases), drafter = references, drafter_of(name)
    for inputs, expected in cases:
        out = mmspec.generate(
            model, drafter=drafter, max_new_tokens=TOKENS, do_sample=False, return_dict=True, **inputs
        )
        assert torch.equal(out.sequences, expected)
        assert out.stats.exact
    if name.startswith(("eagle", "vlm/")):
        assert out.stats.accept_length > 2


def test_another_picture_another_caption() -> None:
    model, processor = mmspec.zoo.load("vlm")
    prompts = held_out(2)
    one, two = (encode(processor, [prompts[0]]), encode(processor, [prompts[1]]))
    swapped = dict(one, pixel_values=two["pixel_values"])
    texts = [mmspec.generate(model, max_new_tokens=60, do_sample=False, **inputs)[0] for inputs in (one, swapped)]
    assert not torch.equal(*[text[one["input_ids"].shape[1] :][:40] for text in texts])

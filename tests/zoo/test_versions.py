"""Each kind of request of the shipped models, on whatever transformers is installed: the result is that of plain decoding."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from PIL import Image

import mmspec
from mmspec.evaluate.vlm.requests import held_out
from mmspec.imagegen import SCD, CSpD
from mmspec.run.vlm_requests import encode
from mmspec.video import SDVG, Strided
from tests.zoo.drafters import drafters_of

GREEDY = dict(max_new_tokens=24, do_sample=False)
TEXT = "USER: Tell me a story. ASSISTANT:"
LOOKUP = "lookup:longest=2"

loaded = cache(mmspec.zoo.load)


def same_words(name: str, inputs: dict[str, Any], drafters: list[Any]) -> None:
    model, _ = loaded(name)
    plain = model.generate(**inputs, **GREEDY)
    for drafter in drafters:
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs, **GREEDY), plain), drafter


@pytest.mark.parametrize("name", ["vlm", "vlm/hybrid"])
def test_texts(name: str) -> None:
    _, processor = loaded(name)
    same_words(name, dict(processor(text=TEXT, return_tensors="pt")), [None, LOOKUP])


@pytest.mark.parametrize("name", ["vlm", "vlm/hybrid"])
def test_pictures_with_every_shipped_drafter(name: str) -> None:
    _, processor = loaded(name)
    drafters = [loaded(drafter) for drafter in drafters_of(name) if drafter in mmspec.zoo.names()]
    same_words(name, encode(processor, held_out(2)), [None, LOOKUP, *drafters])


@pytest.mark.parametrize("name", ["vlm", "vlm/hybrid"])
def test_sessions(name: str) -> None:
    model, processor = loaded(name)
    session = mmspec.Session(model, processor, drafter=mmspec.drafters.PromptLookup(longest=2))
    for text, images in (("Describe this picture.", [Image.new("RGB", (64, 64), "red")]), ("Tell me more.", [])):
        session.add(text, images)
        inputs = session.inputs()
        result = session.generate(**GREEDY)
        assert torch.equal(result.sequences, model.generate(**inputs, **GREEDY))
    assert result.read < inputs["input_ids"].shape[1]


@pytest.mark.parametrize("name", ["c2i", "t2i"])
def test_images(name: str) -> None:
    asked = [3] if name == "c2i" else ["a red circle"]
    plain, drafted = (
        loaded(name)(asked, decoding=decoding, temperature=0, pixels=False).tokens for decoding in (None, SCD(16))
    )
    assert torch.equal(plain, drafted)


def test_continuous_images() -> None:
    pipe, decoding = loaded("mar"), CSpD(loaded("mar/draft"), window="truncate", gamma=3, tolerance=0.0, prefill=0.0)
    plain, drafted = (pipe([3], decoding=way, seed=1, num_iter=8, pixels=False).tokens for way in (None, decoding))
    assert torch.equal(plain, drafted)


def test_videos() -> None:
    pipe, draft = loaded("video"), loaded("video/draft")
    asked = ["a red circle moves to the right"]
    plain = pipe(asked, seed=0, blocks=2)
    drafted = pipe(asked, decoding=SDVG(draft, router=Strided(2)), seed=0, blocks=2)
    assert drafted.stats.target_blocks == [2] and (plain.videos[0] == drafted.videos[0]).all()

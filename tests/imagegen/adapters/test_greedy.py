"""Every adapter generates what the model's own loop does."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import Tensor

from mmspec.imagegen.adapters.registry import AdapterPipeline
from mmspec.imagegen.jacobi import SJD
from tests.imagegen.adapters import loops
from tests.imagegen.adapters.models import NAMES, batch, grids, prompts
from tests.imagegen.adapters.pipelines import pipeline

BATCHES = ((4,), (3, 7))


@cache
def own(name: str, lengths: tuple[int, ...], scale: float) -> Tensor:
    """Token ids of the model's own loop, int64 [B, total]."""
    rows = prompts(lengths)
    if name == "janus":
        return loops.janus(rows, scale)
    if name == "chameleon":
        return loops.chameleon(rows, scale)
    if name == "glm_image":
        return loops.glm_image(rows)
    return loops.emu3(name, rows, scale, negatives(len(rows)))


def negatives(count: int) -> tuple[Tensor, ...]:
    return prompts((5, 2)[:count], seed=9)


def given(name: str, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    rows = prompts(lengths)
    if name == "glm_image":
        return {**batch(rows), **grids(len(rows))}
    if name.startswith("emu3"):
        others = batch(negatives(len(rows)))
        return {
            **batch(rows),
            "negative_prompt_ids": others["input_ids"],
            "negative_prompt_attention_mask": others["attention_mask"],
        }
    return batch(rows)


def generated(pipe: AdapterPipeline, inputs: dict[str, Tensor], **settings: object) -> Tensor:
    """Token ids of everything a request generated, int64 [B, total]."""
    run = pipe.start(inputs, temperature=0.0, **settings)
    run.run()
    assert not run.target.errors
    vocabulary = getattr(pipe.model, "vocabulary", None)
    return run.target.values if vocabulary is None else vocabulary.ids[run.target.values]


CASES = [(name, scale) for name in NAMES for scale in ((1.0,) if name == "glm_image" else (1.0, 3.0))]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("lengths", BATCHES, ids=["one", "ragged"])
@pytest.mark.parametrize(("name", "scale"), CASES)
def test_tokens_are_those_of_the_models_own_loop(name: str, scale: float, lengths: tuple[int, ...]) -> None:
    found = generated(pipeline(name), given(name, lengths), guidance_scale=scale)
    assert torch.equal(found, own(name, lengths, scale))


@pytest.mark.parametrize("name", NAMES)
def test_tokens_vary_with_prompt_and_place(name: str) -> None:
    """Else the comparisons above would show little."""
    found = own(name, (3, 7), 1.0)
    assert not torch.equal(found[0], found[1])
    assert len(found.unique()) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_moves_as_a_whole(name: str) -> None:
    pipe = deepcopy(pipeline(name)).to("cpu", torch.bfloat16)
    assert pipe.model.dtype == torch.bfloat16 and pipe.model.device == torch.device("cpu")
    run = pipe.start(given(name, (3, 7)), decoding=SJD(4), guidance_scale=1.0, seed=0)
    assert run.run().emitted == [pipe.model.geometry.total] * 2 and not run.target.errors


def test_guidance_matters() -> None:
    for name, scale in CASES:
        assert scale == 1 or not torch.equal(own(name, (3, 7), scale), own(name, (3, 7), 1.0)), name


@pytest.mark.parametrize("name", ["emu3", "emu3_text"])
def test_without_a_negative_prompt_the_last_token_is_the_unconditional_prompt(name: str) -> None:
    rows = prompts((3, 7))
    assert torch.equal(
        generated(pipeline(name), batch(rows), guidance_scale=3.0), loops.emu3(name, rows, 3.0, negative=None)
    )

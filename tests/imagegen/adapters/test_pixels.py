"""Codes become pixels where the model has a decoder; else one sentence says so before anything runs."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from mmspec.imagegen.adapters.registry import pipeline_for
from mmspec.imagegen.jacobi import SJD
from tests.imagegen.adapters.models import CODES, COLS, NAMES, ROWS, SMALL, tiny
from tests.imagegen.adapters.pipelines import pipeline
from tests.imagegen.adapters.test_greedy import given


@pytest.mark.parametrize("name", ["janus", "emu3"])
def test_pixels_are_those_of_the_models_own_decoder(name: str) -> None:
    pipe = pipeline(name)
    out = pipe(given(name, (3, 7)), seed=0)
    grid = (pipe.model.geometry.rows, pipe.model.geometry.cols)
    if name == "janus":
        own = tiny(name).decode_image_tokens(out.tokens).permute(0, 3, 1, 2)
    else:
        values = pipe.model.vocabulary.ids[out.tokens].view(2, *grid)
        ends = torch.full((2, grid[0], 1), 5)
        sequence = torch.cat([torch.cat([values, ends], -1).flatten(1), torch.zeros(2, 3, dtype=torch.long)], 1)
        own = tiny(name).decode_image_tokens(image_tokens=sequence, height=grid[0], width=grid[1])
    assert torch.allclose(pipe.model.decode(out.tokens), ((own + 1) / 2).clamp(0, 1), atol=1e-6)
    assert [image.size for image in out.images] == [(grid[1] * 2, grid[0] * 2)] * 2


@pytest.mark.parametrize("name", ["chameleon", "glm_image", "emu3_text"])
def test_models_without_a_decoder_refuse_at_once(name: str) -> None:
    pipe = pipeline(name)
    with pytest.raises(ValueError, match="expected pixels=False"):
        pipe(object())
    with pytest.raises(ValueError, match="expected pixels=False"):
        pipe.model.decode(torch.zeros(1, 12, dtype=torch.long))
    assert pipe(given(name, (3,)), pixels=False).images == []


@pytest.mark.parametrize("name", NAMES)
def test_the_codebook_has_a_row_for_every_code(name: str) -> None:
    model = pipeline(name).model
    if name == "emu3_text":
        with pytest.raises(ValueError, match="codebook: expected a model with its image tokenizer"):
            model.codebook()
        return
    book = model.codebook()
    assert book.shape[0] == CODES and book.dtype == torch.float32
    if name in ("janus", "glm_image"):
        assert torch.allclose(book.norm(dim=-1), torch.ones(CODES))


@pytest.mark.parametrize("name", ["janus", "emu3", "glm_image"])
def test_half_precision_runs_to_the_end(name: str) -> None:
    options = {"emu3": {"size": (ROWS * 2, COLS * 2)}, "glm_image": {"size": (64, 64), "preview": SMALL}}.get(name, {})
    pipe = pipeline_for(deepcopy(tiny(name)).to(torch.bfloat16), **options)
    inputs = given("chameleon", (3, 7))  # ids and mask alone
    out = pipe(inputs, decoding=SJD(4), seed=1, pixels=pipe.model.no_pixels is None)
    assert not out.errors and out.tokens.max() < CODES
    assert len(out.images) == (0 if pipe.model.no_pixels else 2)

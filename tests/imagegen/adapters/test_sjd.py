"""Speculative Jacobi decoding on every adapter: plain greedy tokens, some of them drafted; sampled runs stay in the grid."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen import SCD
from mmspec.imagegen.jacobi import SJD
from tests.imagegen.adapters.models import NAMES
from tests.imagegen.adapters.pipelines import pipeline
from tests.imagegen.adapters.test_greedy import given, own

LENGTHS = (3, 7)
SCALES = {"glm_image": 1.0, "emu3": 3.0, "janus": 3.0}


@pytest.mark.parametrize("decoding", [SJD(5), SCD(5)], ids=lambda one: one.name)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_match_plain_decoding(name: str, decoding: SJD) -> None:
    scale = SCALES.get(name, 1.0)
    run = pipeline(name).start(given(name, LENGTHS), decoding=decoding, temperature=0.0, guidance_scale=scale)
    stats, target = run.run(), run.target
    vocabulary = getattr(target.model, "vocabulary", None)
    found = target.values if vocabulary is None else vocabulary.ids[target.values]
    assert torch.equal(found, own(name, LENGTHS, scale))
    assert stats.exact and stats.row_passes < len(LENGTHS) * target.total


@pytest.mark.parametrize("decoding", [None, SJD(5)], ids=["plain", "SJD"])
@pytest.mark.parametrize("name", NAMES)
def test_sampled_images_fill_the_grid(name: str, decoding: SJD | None) -> None:
    pipe = pipeline(name)
    run = pipe.start(given(name, LENGTHS), decoding=decoding, temperature=1.0, seed=4)
    run.run()
    geometry, values = pipe.model.geometry, run.target.values
    forced = geometry.forced
    assert not run.target.errors
    assert (values[:, forced >= 0] == forced[forced >= 0]).all()
    assert (values[:, forced < 0] < pipe.model.codes).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_rows_image_is_its_own(name: str) -> None:
    """Neither the other row nor the padding it brings changes what a seed draws."""
    settings = dict(decoding=SJD(5), guidance_scale=SCALES.get(name, 1.0), pixels=False)
    both = given(name, LENGTHS)
    alone = {key: rows[:1, -5:] if key == "input_ids" else rows[:1] for key, rows in both.items()}
    alone.pop("attention_mask")
    if "image_grid_thw" in both:
        alone["image_grid_thw"] = both["image_grid_thw"][:2]
    first = pipeline(name)(alone, seed=7, **settings).tokens
    assert torch.equal(first, pipeline(name)(both, seed=[7, 8], **settings).tokens[:1])

"""Pipelines of diffusers, taken whole: same texts, same settings, and a pair of them drafts."""

from __future__ import annotations

import pytest
import torch

from mmspec.video import SDVG, AnyFlowVideo, FlowMap, HeliosVideo, SkyReelsVideo, ZeroStarGuidance, from_diffusers
from mmspec.video.adapters.schedulers import Pyramid
from tests.video.adapters.test_pipelines import anyflow, helios, quiet, skyreels, staged, vae
from tests.video.decoding.tiny import bright
from tests.video.test_pipeline import encoder


def pipeline(name: str, seed: int = 0, **config: object) -> object:
    import diffusers

    schedulers = {
        "AnyFlowFARPipeline": lambda: diffusers.FlowMapEulerDiscreteScheduler(shift=3.0),
        "HeliosPipeline": lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0),
        "HeliosPyramidPipeline": lambda: staged(bool(config.get("is_distilled")), stages=2),
        "SkyReelsV2DiffusionForcingPipeline": lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=8.0),
    }
    transformer = {"A": anyflow, "H": helios, "S": skyreels}[name[0]](seed)
    texts = encoder()
    made = getattr(diffusers, name)(
        tokenizer=texts.tokenizer,
        text_encoder=texts.encoder,
        vae=vae(),
        transformer=transformer,
        scheduler=schedulers[name](),
        **config,
    )
    return quiet(made)


FAMILIES = {
    "AnyFlowFARPipeline": ({}, {"steps": 2}, AnyFlowVideo, 1.0),
    "HeliosPipeline": ({}, {"steps": 2}, HeliosVideo, 5.0),
    "HeliosPyramidPipeline": ({"is_cfg_zero_star": True}, {"steps": (3, 2)}, HeliosVideo, 5.0),
    "SkyReelsV2DiffusionForcingPipeline": ({}, {"steps": 2}, SkyReelsVideo, 6.0),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pair_drafts_and_reads_as_diffusers_reads(name: str) -> None:
    config, how, kind, scale = FAMILIES[name]
    theirs = pipeline(name, **config)
    own, small = (from_diffusers(one, size=(32, 32), blocks=2, **how) for one in (theirs, pipeline(name, 1, **config)))
    assert isinstance(own.model, kind) and own.model.transformer is theirs.transformer and own.vae.model is theirs.vae
    texts = ["a red ball", "a  ball &amp;amp; a ball"]
    wanted = theirs.encode_prompt(texts, do_classifier_free_guidance=False, max_sequence_length=512)[0]
    assert torch.equal(own.encoder(texts), wanted)
    if scale > 1:
        guidance = own.model.guidance
        assert guidance.scale == scale and torch.equal(guidance.negative, own.encoder([""]))
        assert isinstance(guidance, ZeroStarGuidance) == (name == "HeliosPyramidPipeline")
    if name == "AnyFlowFARPipeline":  # torch's flex attention takes seconds here, and the pair draws in another test
        return
    out = own("a red ball", seed=0, decoding=SDVG(small, bright, threshold=-torch.inf))
    assert out.stats.accepted == [[0], [1]] and out.latents[0].isfinite().all() and not out.errors


@pytest.mark.parametrize("name", FAMILIES)
def test_a_pipeline_without_a_text_encoder_takes_states(name: str) -> None:
    config, how, _, scale = FAMILIES[name]
    whole, bare = pipeline(name, **config), pipeline(name, **config)
    bare.text_encoder = bare.tokenizer = None
    if scale > 1:
        with pytest.raises(ValueError, match="negative_prompt: expected float"):
            from_diffusers(bare, size=(32, 32), **how)
        how = how | {"guidance_scale": 1.0}
    own = from_diffusers(bare, size=(32, 32), blocks=1, **how)
    with pytest.raises(ValueError, match="prompts: expected float"):
        own("a red ball", seed=0)
    if name == "AnyFlowFARPipeline":  # torch's flex attention takes seconds here
        return
    other = from_diffusers(whole, size=(32, 32), blocks=1, **how)
    states = other.encoder(["a red ball"])
    assert torch.equal(
        own(states, seed=0, pixels=False).latents[0], other("a red ball", seed=0, pixels=False).latents[0]
    )
    negative = from_diffusers(bare, size=(32, 32), blocks=1, **how | {"guidance_scale": 3.0}, negative_prompt=states)
    assert torch.equal(negative.model.guidance.negative, states)
    bare.vae = None
    with pytest.raises(ValueError, match="pipe: expected a .* with its vae"):
        from_diffusers(bare, size=(32, 32), **how)


def test_settings_are_those_of_the_pipeline() -> None:
    shifted = from_diffusers(pipeline("AnyFlowFARPipeline"), size=(32, 32)).model
    assert shifted.sampler == FlowMap(4, 3.0) and shifted.plan.sizes(0, 3) == (1, 3, 3)
    fast = from_diffusers(pipeline("HeliosPyramidPipeline", is_distilled=True), size=(32, 32)).model
    assert isinstance(fast.sampler, Pyramid) and fast.steps == (2, 2) and fast.doubled and fast.guidance.passes == 1
    slow = from_diffusers(pipeline("HeliosPyramidPipeline"), size=(32, 32), negative_prompt="left").model
    assert slow.steps == (10, 10) and not slow.doubled and type(slow.guidance).__name__ == "VideoGuidance"
    alone = from_diffusers(pipeline("HeliosPipeline"), guidance_scale=1.0, size=(32, 32)).model
    assert alone.guidance.passes == 1 and alone.passes == 50
    forced = pipeline("SkyReelsV2DiffusionForcingPipeline")
    forced.transformer.register_to_config(num_frame_per_block=1)
    try:
        assert from_diffusers(forced, size=(32, 32)).model.plan.size == 5
    finally:
        forced.transformer.register_to_config(num_frame_per_block=2)


@pytest.mark.parametrize(
    ("name", "how", "told"),
    [
        ("AnyFlowFARPipeline", {"guidance_scale": 3.0}, "guidance_scale: expected 1 for AnyFlow"),
        ("AnyFlowFARPipeline", {"steps": (2, 2)}, "steps: expected one number"),
        (
            "HeliosPyramidPipeline",
            {"steps": 30},
            r"steps: expected a number per stage, such as \(10, 10, 10\), got 30",
        ),
        (
            "HeliosPyramidPipeline",
            {"steps": (2, 2, 2)},
            "steps: expected at least 1 for each of the scheduler's 2 stages",
        ),
        ("HeliosPipeline", {"size": (32, 30)}, "size: expected height and width"),
    ],
)
def test_invalid_steps_guidance_and_sizes_are_refused(name: str, how: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_diffusers(pipeline(name), **how)


def test_other_pipelines_are_refused() -> None:
    with pytest.raises(ValueError, match="pipe: expected one of AnyFlowFARPipeline, .*, got StreamingWanVAE"):
        from_diffusers(from_diffusers(pipeline("HeliosPipeline"), size=(32, 32)).vae)

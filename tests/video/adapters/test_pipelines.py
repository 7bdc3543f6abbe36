"""Block by block, the models of diffusers draw what its own pipelines draw."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import Tensor

from mmspec.video import BlockPlan, FlowMap, GivenBlockNoise
from mmspec.video.adapters.anyflow import AnyFlowVideo
from mmspec.video.adapters.guidance import VideoGuidance
from mmspec.video.adapters.helios import HeliosVideo
from mmspec.video.adapters.schedulers import Scheduled
from mmspec.video.adapters.skyreels import SkyReelsVideo
from tests.video.tiny import apart, noise, randomised

CHANNELS, SIZE, STEPS = 4, (4, 4), 2
COMMON = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "text_dim": 10,
    "freq_dim": 16,
    "ffn_dim": 24,
    "num_layers": 2,
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


TEXT, NEGATIVE = drawn(1, 6, 10, seed=1), drawn(1, 6, 10, seed=2)


@lru_cache
def vae() -> object:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=3,
        z_dim=CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    ).eval()


@lru_cache
def anyflow(seed: int = 0) -> object:
    from diffusers import AnyFlowFARTransformer3DModel

    model = AnyFlowFARTransformer3DModel(**COMMON, compressed_patch_size=(1, 4, 4), full_chunk_limit=3)
    return randomised(model, seed).eval()


@lru_cache
def skyreels(seed: int = 0) -> object:
    from diffusers import SkyReelsV2Transformer3DModel

    return randomised(
        SkyReelsV2Transformer3DModel(**COMMON, num_frame_per_block=2, inject_sample_info=True), seed
    ).eval()


@lru_cache
def helios(seed: int = 0) -> object:
    from diffusers import HeliosTransformer3DModel

    return randomised(HeliosTransformer3DModel(**COMMON, rope_dim=(4, 4, 4)), seed).eval()


def staged(distilled: bool = False, stages: int = 3) -> object:
    """The scheduler of Helios' pipeline of stages."""
    from diffusers import HeliosDMDScheduler, HeliosScheduler

    ranges = [stage / stages for stage in range(stages + 1)]
    made = HeliosDMDScheduler if distilled else HeliosScheduler
    return made(stages=stages, stage_range=ranges, use_dynamic_shifting=True, time_shift_type="linear")


def blocks_of(latents: Tensor, plan: BlockPlan) -> list[Tensor]:
    return list(latents.split(plan.cut(latents.shape[2]), 2))


def rolled(video: object, first: list[Tensor], text: Tensor = TEXT) -> tuple[list[Tensor], object]:
    state, film = video.open(text, GivenBlockNoise(first), SIZE), []
    for _ in first:
        film.append(state.generate(film))
    return film, state


def quiet(pipeline: object) -> object:
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.mark.parametrize("mean_velocity", (True, False))
def test_anyflow(mean_velocity: bool) -> None:
    from diffusers import AnyFlowFARPipeline, FlowMapEulerDiscreteScheduler

    plan, frames = (
        BlockPlan(2, first=(1, 2, 2, 2, 1)),
        8,
    )  # as published, the last is a part; two are compressed in the end
    pipeline = quiet(
        AnyFlowFARPipeline(
            tokenizer=None,
            text_encoder=None,
            vae=vae(),
            transformer=anyflow(),
            scheduler=FlowMapEulerDiscreteScheduler(shift=5.0),
        )
    )
    latents = drawn(1, CHANNELS, frames, *SIZE)
    wanted = pipeline(
        prompt_embeds=TEXT,
        latents=latents,
        height=32,
        width=32,
        num_frames=4 * frames - 3,
        num_inference_steps=STEPS,
        chunk_partition=list(plan.cut(frames)),
        output_type="latent",
        use_mean_velocity=mean_velocity,
    ).frames
    video = AnyFlowVideo(anyflow(), FlowMap(STEPS, until=mean_velocity), plan)
    film, state = rolled(video, blocks_of(latents, plan))
    assert apart(torch.cat(film, 2), wanted) < 1e-5
    assert state.passes == len(film) * STEPS + len(film) - 1 and state.context_passes == len(film) - 1


@pytest.mark.parametrize("scale", (1.0, 3.0))
def test_skyreels(scale: float) -> None:
    from diffusers import SkyReelsV2DiffusionForcingPipeline, UniPCMultistepScheduler

    def scheduler() -> object:
        # without its corrector, which the pipeline hands a view of latents that it then overwrites
        return UniPCMultistepScheduler(
            use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=8.0, disable_corrector=[0, 1, 2]
        )

    plan, frames = BlockPlan(2), 6
    pipeline = quiet(
        SkyReelsV2DiffusionForcingPipeline(
            tokenizer=None, text_encoder=None, vae=vae(), transformer=skyreels(), scheduler=scheduler()
        )
    )
    latents = drawn(1, CHANNELS, frames, *SIZE)  # the pipeline draws them so: it fails over those it is given
    source = torch.Generator().manual_seed(0)
    wanted = pipeline(
        None,
        prompt_embeds=TEXT,
        negative_prompt_embeds=NEGATIVE,
        generator=source,
        height=32,
        width=32,
        num_frames=4 * frames - 3,
        num_inference_steps=3,
        guidance_scale=scale,
        ar_step=4,
        causal_block_size=2,
        output_type="latent",
    ).frames
    video = SkyReelsVideo(skyreels(), Scheduled(scheduler(), 3), plan, guidance=VideoGuidance(scale, NEGATIVE))
    film, state = rolled(video, blocks_of(latents, plan))
    assert apart(torch.cat(film, 2), wanted) < 1e-4
    assert state.passes == len(film) * video.passes == len(film) * 3 * (2 if scale > 1 else 1)


@pytest.mark.parametrize("scale", (1.0, 3.0))
def test_helios(scale: float) -> None:
    from diffusers import HeliosPipeline, HeliosScheduler

    def scheduler() -> object:
        return HeliosScheduler(
            stages=1, stage_range=[0, 1], gamma=1 / 3, scheduler_type="unipc", use_dynamic_shifting=True
        )

    plan, chunks, sizes = BlockPlan(3), 4, (4, 2, 1)
    pipeline = quiet(
        HeliosPipeline(tokenizer=None, text_encoder=None, vae=vae(), transformer=helios(), scheduler=scheduler())
    )
    wanted = pipeline(
        prompt_embeds=TEXT,
        negative_prompt_embeds=NEGATIVE,
        height=32,
        width=32,
        num_frames=9 * chunks,
        num_inference_steps=3,
        guidance_scale=scale,
        generator=torch.Generator().manual_seed(5),
        history_sizes=list(sizes),
        num_latent_frames_per_chunk=3,
        output_type="latent",
    ).frames
    source = torch.Generator().manual_seed(5)
    first = [torch.randn(1, CHANNELS, 3, *SIZE, generator=source) for _ in range(chunks)]
    video = HeliosVideo(helios(), scheduler(), 3, plan, sizes, VideoGuidance(scale, NEGATIVE))
    film, state = rolled(video, first)
    assert apart(torch.cat(film, 2), wanted) < 1e-4
    assert state.passes == chunks * video.passes


def videos(seed: int = 0) -> dict[str, object]:
    from diffusers import FlowMatchEulerDiscreteScheduler

    euler = Scheduled(FlowMatchEulerDiscreteScheduler(shift=5.0), STEPS)
    return {
        "anyflow": AnyFlowVideo(anyflow(seed), FlowMap(STEPS), BlockPlan(2, first=1)),
        "skyreels": SkyReelsVideo(skyreels(seed), euler, BlockPlan(2), window=6, context_noise=20.0),
        "helios": HeliosVideo(helios(seed), euler.scheduler, STEPS, BlockPlan(3), (4, 2, 1), sampler=euler),
        "helios, stages": HeliosVideo(helios(seed), staged(stages=2), (2, 2), BlockPlan(3, apart=True), (4, 2, 1)),
        "helios, distilled": HeliosVideo(
            helios(seed), staged(True, 2), (2, 1), BlockPlan(3, apart=True), (4, 2, 1), doubled=True
        ),
    }


FAMILIES = ("anyflow", "skyreels", "helios", "helios, stages", "helios, distilled")


@pytest.mark.default_cells("anyflow", "skyreels", "helios, stages")
@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_was_kept_the_next_block_is_that_of_a_new_request(family: str) -> None:
    target, drafter = videos()[family], videos(1)[family]
    assert (target.channels, target.plan) == (drafter.channels, drafter.plan)
    large, small = (video.open(TEXT, noise(), SIZE) for video in (target, drafter))
    film = [large.generate([])]
    for kept in (True, False, True):
        before = small.snapshot()
        draft = small.generate(film)
        small.generate([*film, draft])  # drafts on while the draft is judged
        small.restore(before)
        film.append(draft if kept else large.generate(film))
        assert film[-1].isfinite().all()
    for video, state in ((target, large), (drafter, small)):
        wanted = video.open(TEXT, noise(), SIZE).generate(film)
        assert torch.equal(state.generate(film), wanted) and torch.equal(state.generate(film), wanted)
        state.absorb(film)
        state.switch(NEGATIVE, len(film))
        switched = video.open(TEXT, noise(), SIZE)
        switched.switch(NEGATIVE, len(film))
        assert torch.equal(state.generate(film), switched.generate(film)) and apart(state.generate(film), wanted) > 1e-3


def test_invalid_plans_windows_and_sizes_are_refused() -> None:
    euler = videos()["skyreels"].sampler
    with pytest.raises(ValueError, match="plan: expected blocks of the transformer's 2 frames each"):
        SkyReelsVideo(skyreels(), euler, BlockPlan(3))
    with pytest.raises(ValueError, match="window: expected room for a block of 2 frames and the previous block, got 3"):
        SkyReelsVideo(skyreels(), euler, BlockPlan(2), window=3)
    with pytest.raises(ValueError, match=r"negative: expected a text for guidance of 5\.0"):
        VideoGuidance(5.0)
    with pytest.raises(ValueError, match="size: expected multiples of 4 and 4"):
        videos()["anyflow"].open(TEXT, noise(), (6, 4))
    with pytest.raises(ValueError, match="passes: expected at least 1, got 0"):
        Scheduled(euler.scheduler, 0)
    state = videos()["anyflow"].open(TEXT, noise(), SIZE)
    state.absorb([drawn(1, CHANNELS, 1, *SIZE)])
    with pytest.raises(ValueError, match="video: expected at least the 1 blocks that were read, got 0"):
        state.generate([])

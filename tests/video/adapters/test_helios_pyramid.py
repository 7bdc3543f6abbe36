"""Helios through stages of growing size: what diffusers' own pipeline of stages draws, distilled or guided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.video import (
    BlockPlan,
    BlockVideoPipeline,
    GivenBlockNoise,
    HeliosVideo,
    StreamingWanVAE,
    VideoGuidance,
    ZeroStarGuidance,
)
from mmspec.video.adapters.schedulers import Pyramid, lower_factor
from tests.video.adapters.test_pipelines import CHANNELS, NEGATIVE, TEXT, helios, quiet, staged, vae
from tests.video.tiny import apart

SIZE, STEPS, CHUNKS = (8, 8), (4, 2, 3), 3  # the first stage has one token a frame
PLAN, HISTORY = BlockPlan(3, apart=True), (4, 2, 1)


def recorded(seed: int) -> tuple[list[Tensor], list[list[Tensor]]]:
    """What the pipeline draws from its generator, as draws of a block: those of a smaller stage lie in a corner."""
    source, first, fresh = torch.Generator().manual_seed(seed), [], []
    for _ in range(CHUNKS):
        first.append(torch.randn(1, CHANNELS, 3, *SIZE, generator=source))
        draws = []
        for side in (4, 8):
            cells = torch.randn(CHANNELS * 3 * (side // 2) ** 2, 4, generator=source)
            laid = (
                cells.view(1, CHANNELS, 3, side // 2, side // 2, 2, 2)
                .transpose(4, 5)
                .reshape(1, CHANNELS, 3, side, side)
            )
            draws.append(torch.full((1, CHANNELS, 3, *SIZE), torch.nan))
            draws[-1][..., :side, :side] = laid
        fresh.append(draws)
    return first, fresh


def published(guidance: VideoGuidance, distilled: bool, doubled: bool) -> Tensor:
    from diffusers import HeliosPyramidPipeline

    pipeline = HeliosPyramidPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=vae(),
        transformer=helios(),
        scheduler=staged(distilled),
        is_cfg_zero_star=isinstance(guidance, ZeroStarGuidance),
        is_distilled=distilled,
    )
    # the pipeline views what a patch a frame leaves without its order in memory
    ordered = helios().register_forward_hook(lambda model, given, out: (out[0].contiguous(),))
    made = drawn(
        pipeline,
        prompt_embeds=TEXT,
        negative_prompt_embeds=NEGATIVE,
        height=64,
        width=64,
        num_frames=9 * CHUNKS,
        guidance_scale=guidance.scale,
        generator=torch.Generator().manual_seed(5),
        history_sizes=list(HISTORY),
        num_latent_frames_per_chunk=3,
        pyramid_num_inference_steps_list=list(STEPS),
        is_amplify_first_chunk=doubled,
        output_type="latent",
    ).frames
    ordered.remove()
    return made


def drawn(pipeline: object, **asked: object) -> Any:
    """What the pipeline draws. It factors a singular matrix, which fails on some processors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.linalg, "cholesky", lower_factor)
        return quiet(pipeline)(**asked)


@pytest.mark.default_cells("plain", "zero star", "distilled, first chunk doubled")
@pytest.mark.parametrize(
    ("guidance", "distilled", "doubled"),
    [
        (VideoGuidance(), False, False),
        (VideoGuidance(3.0, NEGATIVE), False, False),
        (ZeroStarGuidance(3.0, NEGATIVE), False, False),
        (VideoGuidance(), True, False),
        (VideoGuidance(), True, True),
    ],
    ids=("plain", "guided", "zero star", "distilled", "distilled, first chunk doubled"),
)
def test_chunks_are_those_of_the_pipeline_of_stages(guidance: VideoGuidance, distilled: bool, doubled: bool) -> None:
    wanted = published(guidance, distilled, doubled)
    video = HeliosVideo(helios(), staged(distilled), STEPS, PLAN, HISTORY, guidance, doubled)
    state, film = video.open(TEXT, GivenBlockNoise(*recorded(5)), SIZE), []
    for _ in range(CHUNKS):
        film.append(state.generate(film))
    assert apart(torch.cat(film, 2), wanted) < 2e-4 * wanted.abs().max()
    assert state.passes == CHUNKS * video.passes + (sum(STEPS) if doubled else 0)
    assert video.passes == (sum(STEPS) - guidance.still) * guidance.passes


def test_a_singular_covariance_has_a_factor_on_every_processor() -> None:
    for cells in (2, 4, 9):
        off = 1 / (cells - 1)
        for more in (-1e-7, 0.0, 1e-7):  # a pivot on either side of 0
            covariance = torch.eye(cells) * (1 + off + more) - off * torch.ones(cells, cells)
            factor = lower_factor(covariance)
            assert torch.equal(factor, factor.tril())
            torch.testing.assert_close(factor @ factor.T, covariance, atol=1e-6, rtol=0)
    for off in (0.4, 0.5, 0.6):
        with pytest.raises(ValueError, match="gamma: expected at most 1 / 3 between 4 cells"):
            lower_factor(torch.eye(4) * (1 + off) - off * torch.ones(4, 4))


def test_a_stage_begins_with_noise_that_patches_share() -> None:
    """Four cells that are enlarged from one get noise whose correlation is minus gamma."""
    sampler, source = Pyramid(staged(), STEPS), torch.Generator().manual_seed(0)
    fresh = torch.randn(1, 4, 40, 32, 32, generator=source)
    noise = sampler._enlarged(torch.zeros(1, 4, 40, 16, 16), 0.5, fresh)
    cells = noise.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).transpose(4, 5).flatten(5).reshape(-1, 4)
    found = torch.corrcoef(cells.T)
    assert (found - found.diag().diag() + 1 / 3 * (1 - torch.eye(4))).abs().max() < 0.03
    neighbours = noise[..., 1:-1:2].flatten() @ noise[..., 2::2].flatten() / noise[..., 2::2].square().sum()
    assert neighbours.abs() < 0.03  # of other patches


def test_the_pipeline_decodes_every_chunk_as_a_video_of_its_own() -> None:
    video = HeliosVideo(helios(), staged(), STEPS, PLAN, HISTORY)
    pipe = BlockVideoPipeline(video, StreamingWanVAE(vae()), size=(64, 64), blocks=3)
    seen: list[int] = []
    out = pipe(TEXT, seed=0, listener=lambda row, block, frames: seen.append(len(frames)))
    assert seen == [9] * 3 and [PLAN.shown(block, 4) for block in range(4)] == [0, 9, 18, 27]
    with torch.no_grad():
        chunks = [vae().decode(chunk).sample[0] for chunk in out.latents[0][None].split(3, 2)]
    wanted = ((torch.cat(chunks, 1).clamp(-1, 1) + 1) * 127.5).round().permute(1, 2, 3, 0)
    assert (torch.from_numpy(out.videos[0]).float() - wanted).abs().max() <= 1


def test_invalid_helios_settings_are_refused() -> None:
    for make, told in (
        (lambda: HeliosVideo(helios(), staged(), (2, 2), PLAN), r"steps: expected at least 1 for each of .* 3 stages"),
        (lambda: HeliosVideo(helios(), staged(), (2, 0, 2), PLAN), "steps: expected at least 1"),
        (lambda: HeliosVideo(helios(), staged(), STEPS, PLAN, doubled=True), "doubled: expected a HeliosDMDScheduler"),
        (lambda: HeliosVideo(helios(), staged(), 9, PLAN, doubled=True), "doubled: expected the steps of each stage"),
        (
            lambda: HeliosVideo(helios(), staged(), (1, 2, 2), PLAN, guidance=ZeroStarGuidance(2.0, NEGATIVE)),
            "guidance: expected at most 1 unchanged steps",
        ),
        (
            lambda: HeliosVideo(helios(), staged(), STEPS, PLAN).open(TEXT, GivenBlockNoise([TEXT]), (8, 12)),
            "size: expected multiples of 8 and 8",
        ),
        (lambda: ZeroStarGuidance(2.0, NEGATIVE, zeroed=-1), "zeroed: expected at least 0"),
    ):
        with pytest.raises(ValueError, match=told):
            make()
    assert replace(ZeroStarGuidance(), zeroed=3).still == 0  # without guidance every step moves

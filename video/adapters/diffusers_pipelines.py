"""Conversion of loaded autoregressive video pipelines of diffusers into `BlockVideoPipeline`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mmspec.io.validation import number
from mmspec.video.adapters.anyflow import AnyFlowVideo
from mmspec.video.adapters.guidance import VideoGuidance, ZeroStarGuidance
from mmspec.video.adapters.helios import HeliosVideo
from mmspec.video.adapters.schedulers import Scheduled
from mmspec.video.adapters.skyreels import SkyReelsVideo
from mmspec.video.generation import FlowMap
from mmspec.video.model import BlockPlan, BlockVideoModel
from mmspec.video.pipeline import BlockVideoPipeline
from mmspec.video.prompt_encoder import PromptEncoder, PromptReader
from mmspec.video.vae import StreamingWanVAE

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

TEXT = 512  # tokens per prompt, in every family
Steps = int | tuple[int, ...] | None


def from_diffusers(
    pipe: DiffusionPipeline,
    *,
    steps: Steps = None,
    guidance_scale: float | None = None,
    negative_prompt: str | Tensor = "",
    size: tuple[int, int] = (480, 832),
    blocks: int = 7,
) -> BlockVideoPipeline:
    """Return a pipeline with the transformer, autoencoder, text encoder and scheduler of a diffusers pipeline.

    SkyReels-V2 gets blocks of 5 latent frames where its config has no block size.

    Args:
        pipe: A loaded AnyFlowFARPipeline, HeliosPipeline, HeliosPyramidPipeline or SkyReelsV2DiffusionForcingPipeline.
            Without a text encoder the prompts of calls are states, float [B, L, d].
        steps: Steps per block, or per stage for HeliosPyramidPipeline. None takes 4 for AnyFlow, 50 for SkyReels-V2,
            and 50 or (10, 10, 10) for Helios; distilled Helios takes (2, 2, 2) with a doubled first chunk.
        guidance_scale: None for the pipeline's default, 1 for distilled models.
        negative_prompt: The text of the pass without the prompt, or its states, float [1, L, d].
        size: The default height and width of calls, in pixels.
        blocks: The default number of blocks of calls.

    Raises:
        ValueError: The pipeline is unsupported or incomplete, guidance is set for weights that include it, or the
            negative prompt is a text and there is no text encoder.
    """
    build = _FAMILIES.get(type(pipe).__name__)
    if build is None:
        known = ", ".join(_FAMILIES)
        raise ValueError(f"pipe: expected one of {known}, got {type(pipe).__name__}; load one of these")
    needed = ("transformer", "vae", "scheduler", *(("tokenizer",) if pipe.text_encoder is not None else ()))
    if missing := [name for name in needed if getattr(pipe, name) is None]:
        raise ValueError(
            f"pipe: expected a {type(pipe).__name__} with its {missing[0]}, got none; load it with this part"
        )
    encoder = None if pipe.text_encoder is None else PromptEncoder(pipe.text_encoder, pipe.tokenizer, TEXT)

    def guided(usual: float, kind: type[VideoGuidance] = VideoGuidance) -> VideoGuidance:
        scale = usual if guidance_scale is None else number("guidance_scale", guidance_scale)
        if scale <= 1:
            return VideoGuidance()
        if encoder is None and not isinstance(negative_prompt, Tensor):
            raise ValueError(
                "negative_prompt: expected float [1, L, d] for a pipeline without a text encoder, got "
                f"{negative_prompt!r:.60}; encode it, or pass guidance_scale=1"
            )
        return kind(scale, PromptReader(encoder)(negative_prompt))

    model = build(pipe, steps, guided)
    return BlockVideoPipeline(model, StreamingWanVAE(pipe.vae), encoder, size=size, blocks=blocks)


Guided = Callable[..., VideoGuidance]


def _anyflow(pipe: Any, steps: Steps, guided: Guided) -> BlockVideoModel:
    if (scale := guided(1.0).scale) > 1:
        raise ValueError(
            f"guidance_scale: expected 1 for AnyFlow, whose weights include guidance, got {scale}; leave it out"
        )
    return AnyFlowVideo(pipe.transformer, FlowMap(_single_count(steps, 4), pipe.scheduler.config.shift))


def _helios(pipe: Any, steps: Steps, guided: Guided) -> BlockVideoModel:
    return HeliosVideo(pipe.transformer, pipe.scheduler, _single_count(steps, 50), guidance=guided(5.0))


def _helios_stages(pipe: Any, steps: Steps, guided: Guided) -> BlockVideoModel:
    distilled = pipe.config.is_distilled
    steps = ((2,) if distilled else (10,)) * pipe.scheduler.config.stages if steps is None else steps
    if isinstance(steps, int):
        raise ValueError(f"steps: expected a number per stage, such as (10, 10, 10), got {steps}; pass a tuple")
    kind = ZeroStarGuidance if pipe.config.is_cfg_zero_star else VideoGuidance
    guidance = guided(1.0 if distilled else 5.0, kind)
    return HeliosVideo(pipe.transformer, pipe.scheduler, tuple(steps), guidance=guidance, doubled=distilled)


def _skyreels(pipe: Any, steps: Steps, guided: Guided) -> BlockVideoModel:
    if pipe.transformer.config.num_frame_per_block == 1:
        pipe.transformer.register_to_config(num_frame_per_block=BlockPlan(5).size)
    plan = BlockPlan(pipe.transformer.config.num_frame_per_block)
    sampler = Scheduled(pipe.scheduler, _single_count(steps, 50))
    return SkyReelsVideo(pipe.transformer, sampler, plan, max(25, 2 * plan.size), guidance=guided(6.0))


def _single_count(steps: Steps, usual: int) -> int:
    if isinstance(steps, tuple):
        raise ValueError(f"steps: expected one number for a pipeline without stages, got {steps}; pass the total")
    return usual if steps is None else steps


_FAMILIES: dict[str, Callable[[Any, Steps, Guided], BlockVideoModel]] = {
    "AnyFlowFARPipeline": _anyflow,
    "HeliosPipeline": _helios,
    "HeliosPyramidPipeline": _helios_stages,
    "SkyReelsV2DiffusionForcingPipeline": _skyreels,
}

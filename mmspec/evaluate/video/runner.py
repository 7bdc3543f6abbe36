"""How one request for videos runs, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mmspec.evaluate.engine.runs import Runner, Sampler, TimedRun, parts_of, raise_errors, timed_run, without_output
from mmspec.evaluate.image.resources import GenerationRequest
from mmspec.evaluate.image.runner import codes_run
from mmspec.evaluate.model_kinds import BLOCKS
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.decodings import ALONE, PipelineCall
from mmspec.evaluate.video.methods import VideoMethod
from mmspec.evaluate.video.resources import VideoResources

if TYPE_CHECKING:
    from mmspec.video.decoding.output import VideoOutput, VideoStats


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun(TimedRun):
    """stats: of the request.   way: how it was drawn.   alone: by the drafter, which stood in the target's place."""

    stats: VideoStats
    way: PipelineCall
    alone: bool


def sampler(method: VideoMethod, resources: VideoResources, setting: VideoSetting) -> Sampler:
    """A function of (requests, seed) that generates once, timed, pixels included; returns what it cost and the videos, uint8
    [F, H, W, 3]."""
    way = method.make(resources, setting)
    return _blocks(method, way, setting) if resources.kind == BLOCKS else _codes(way, setting)


def runner(method: VideoMethod, resources: VideoResources, setting: VideoSetting) -> Runner:
    """A function of (requests, seed) that generates once, timed, pixels included."""
    return without_output(sampler(method, resources, setting))


def draw(
    way: PipelineCall, asked: Sequence[GenerationRequest], setting: VideoSetting, seed: int | Sequence[int]
) -> VideoOutput:
    """Videos of blocks.   Raises ValueError where one of them failed."""
    out = way.pipeline([one.given for one in asked], blocks=setting.blocks, seed=seed, **way.arguments)
    raise_errors(out.errors)
    return out


def _blocks(method: VideoMethod, way: PipelineCall, setting: VideoSetting) -> Sampler:
    alone = method.key == ALONE

    def run(asked: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[np.ndarray]]:
        began = perf_counter()
        out = draw(way, asked, setting, seed)
        seconds, stats = perf_counter() - began, out.stats
        plan = way.pipeline.model.plan
        output = tuple(block_bytes(one, plan) for one in out.latents)
        more: dict[str, Any] = {"rounds": len(stats.block_s), "stats": stats, "way": way, "alone": alone}
        if alone:
            parts = parts_of(stats, seconds)
            more |= {"parts": parts | {"draft": parts["draft"] + parts["target"], "target": 0.0}, "exact": False}
        return timed_run(stats, output, seconds, BlockRun, **more), out.videos

    return run


def _codes(way: PipelineCall, setting: VideoSetting) -> Sampler:
    def run(asked: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[np.ndarray]]:
        given, how = [one.given for one in asked], {"temperature": setting.temperature, **way.arguments}
        began = perf_counter()
        out = way.pipeline(given, seed=seed, **how)
        seconds = perf_counter() - began
        raise_errors(out.errors)
        return codes_run(out, seconds), list(out.arrays())

    return run


def block_bytes(latents: Tensor, plan: Any) -> tuple[bytes, ...]:
    """Latents float [C, F, h, w] block by block as they stand in memory: equal where every bit is."""
    parts = latents.float().cpu().split(list(plan.cut(latents.shape[1])), dim=1)
    return tuple(part.contiguous().numpy().tobytes() for part in parts)

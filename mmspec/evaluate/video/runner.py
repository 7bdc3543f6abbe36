"""How one request for videos runs, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mmspec.evaluate.engine.runs import Sampler, TimedRun, parts_of, raise_errors, runner_of, timed_run
from mmspec.evaluate.image.resources import GenerationRequest
from mmspec.evaluate.image.runner import codes_run
from mmspec.evaluate.model_kinds import BLOCKS
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.decodings import ALONE, PipelineCall
from mmspec.evaluate.video.methods import VideoMethod
from mmspec.evaluate.video.resources import VideoResources
from mmspec.video.wan.rebuilt import Rebuilt

if TYPE_CHECKING:
    from mmspec.video.decoding.output import VideoOutput, VideoStats


def sampler(method: VideoMethod, resources: VideoResources, setting: VideoSetting) -> Sampler:
    """A function of (requests, seed) that generates once, timed, pixels included; returns what it cost and the videos, uint8
    [F, H, W, 3]."""
    way = method.make(resources, setting)
    return _blocks(method, way, setting) if resources.kind == BLOCKS else _codes(way, setting)


runner = runner_of(sampler)


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
        fields: dict[str, Any] = {"rounds": len(stats.block_s), "more": _block_facts(way, stats)}
        if alone:
            parts = parts_of(stats, seconds)
            fields |= {"parts": parts | {"draft": parts["draft"] + parts["target"], "target": 0.0}, "exact": False}
        return timed_run(stats, output, seconds, **fields), out.videos

    return run


def _block_facts(way: PipelineCall, stats: VideoStats) -> dict[str, Any]:
    """What rows and the timing model need of a request.

    steps, draft_steps: passes that draw a block.   sync: how the drafter's context follows.   judges: drafts are scored.
    blocks: by video, per block whether it was drafted, whether the draft stands, and how many times it was scored.
    """
    decoding, steps = way.arguments.get("decoding"), way.pipeline.model.passes
    drafter = None if decoding is None else decoding.model
    scored = [[(one.scores is not None) + (one.own_scores is not None) for one in row] for row in stats.records]
    return {
        "steps": steps,
        "draft_steps": steps if drafter is None else drafter.passes,
        "sync": _sync(decoding),
        "judges": decoding is not None and decoding.needs.reward,
        "target_forwards": stats.target_forwards,
        "context_forwards": stats.context_forwards,
        "block_s": list(stats.block_s),
        "blocks": [[[bool(one.drafted), bool(one.kept), times] for one, times in zip(*pair, strict=True)]
                   for pair in zip(stats.records, scored, strict=True)],
    }  # fmt: skip


def _sync(decoding: Any) -> str:
    if decoding is None:
        return "lazy"
    return "rebuilt" if isinstance(decoding.sync, Rebuilt) else decoding.sync


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

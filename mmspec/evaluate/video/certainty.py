"""How sure the target is, and what all methods of a setting have in common: sure targets flatter every method."""

from __future__ import annotations

import torch

from mmspec.evaluate.engine.domain import Timed
from mmspec.evaluate.image.certainty import Watched
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.kinds import BLOCKS
from mmspec.evaluate.video.resources import VideoResources

SOME = 4  # videos that laws are watched on


def certainty(timed: Timed) -> dict:
    """Of blocks their number and passes; of codes also the mean largest probability of the laws they are drawn from."""
    if timed.resources.kind == BLOCKS:
        return shape(timed.resources, timed.setting)
    asked = [one.given for case in timed.cases for one in case][:SOME]
    watched = Watched()
    pipe, setting = timed.resources.pipeline, timed.setting
    pipe(asked, decoding=watched, seed=setting.seed, pixels=False, temperature=setting.temperature)
    geometry = pipe.model.geometry
    return {
        "top1_probability": round(float(torch.stack(watched.top1).mean()), 4),
        "values": geometry.total,
        "frames": geometry.frames,
    }


def shape(resources: VideoResources, setting: VideoSetting) -> dict:
    """blocks, block_frames: of a video, in latent frames.   target_steps, draft_steps: passes that draw a block.
    parameter_ratio: target's over drafter's; None where nothing is drafted."""
    pipe = resources.pipeline
    small = resources.drafter().model if _drafts(resources) else None
    return {
        "blocks": setting.blocks or pipe.blocks,
        "block_frames": pipe.model.plan.size,
        "target_steps": pipe.model.passes,
        "draft_steps": None if small is None else small.passes,
        "parameter_ratio": None if small is None else round(_size(pipe.model) / _size(small), 2),
    }


def _drafts(resources: VideoResources) -> bool:
    try:
        resources.drafter()
    except ValueError:
        return False
    return True


def _size(model: object) -> int:
    return sum(value.numel() for value in model.transformer.parameters())

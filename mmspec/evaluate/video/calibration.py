"""Prompts of motion, and routers that are calibrated on videos that no bench measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mmspec.evaluate.pictures import GenerationRequest
from mmspec.run.timed_run import raise_errors
from mmspec.video.decoding.output import VideoStats
from mmspec.video.decoding.sdvg import SDVG
from mmspec.video.rewards.scores import Reduction, reduced
from mmspec.video.routing.learned import Advantage, scored_pairs, train_advantage
from mmspec.video.routing.routers import Explore, threshold_for_share
from mmspec.zoo.world.video import HELD_OUT, sample_video_scene
from mmspec.zoo.world.video_prompts import video_prompt

if TYPE_CHECKING:
    from mmspec.evaluate.video.config import VideoSetting
    from mmspec.run.video_models import VideoResources

FIRST = HELD_OUT + (1 << 18)  # after the scenes of the trainers' evaluations

CALIBRATION = FIRST + (1 << 15)  # scenes on which thresholds and learned routers are fitted

STEP = 1 << 16  # seeds between the prompts of one bench seed and the next

EXPLORED_SHARE = 0.4  # the share of drafts accepted while a router is calibrated


def motion_prompts(count: int, seed: int = 0, first: int = FIRST) -> list[GenerationRequest]:
    """Return `count` prompts of motion; prompts of different seeds, or of another `first`, are disjoint."""
    texts = [video_prompt(sample_video_scene(first + STEP * seed + i), seed) for i in range(count)]
    return [GenerationRequest(text, text) for text in texts]


def requests_of(resources: VideoResources, count: int, seed: int = 0) -> list[GenerationRequest]:
    """Return prompts, or labels in turn for a model that draws classes."""
    config = getattr(getattr(resources.pipeline.model, "transformer", None), "config", None)
    if getattr(config, "model_type", None) == "c2i":
        return [GenerationRequest(i % config.num_classes, f"class {i % config.num_classes}") for i in range(count)]
    return motion_prompts(count, seed)


@dataclass(frozen=True, slots=True)
class RouterCalibration:
    """Calibration data for routers on held-out videos: draft scores and gains from redrawing, in the statistics of
    requests routed by `Explore`."""

    stats: list[VideoStats]

    def scores(self, reduction: Reduction = "min") -> tuple[list[float], list[float]]:
        """Return the scores of every draft, and for each of them the score of its video's first block."""

        def score(frames: list[float]) -> float:
            return reduced(torch.tensor(frames), reduction).item()

        pairs = [
            (score(block.scores), score(row[0].own_scores))
            for stat in self.stats
            for row in stat.records
            for block in row[1:]
            if block.scores is not None
        ]
        own, anchors = zip(*pairs, strict=True) if pairs else ((), ())
        return list(own), list(anchors)

    def advantage(self) -> Advantage:
        """Train a model of the gain from redrawing a block."""
        return train_advantage(*scored_pairs(self.stats)).model

    def gain(self, model: Advantage, share: float) -> float:
        """Return the predicted gain that this share of the drafts does not exceed."""
        features, _ = scored_pairs(self.stats)
        with torch.no_grad():
            return -threshold_for_share(share, (-model(features)).tolist())


def router_calibration(resources: VideoResources, setting: VideoSetting) -> RouterCalibration:
    """Return the calibration over `setting.calibration` videos, drawn once per bench."""
    return resources.once(f"calibration {setting.blocks} {setting.seed}", lambda: _explore_videos(resources, setting))


def _explore_videos(resources: VideoResources, setting: VideoSetting) -> RouterCalibration:
    decoding, stats = SDVG(resources.drafter(), resources.reward(), router=Explore(EXPLORED_SHARE)), []
    prompts = [prompt.prompt for prompt in motion_prompts(setting.calibration, setting.seed, CALIBRATION)]
    for first in range(0, len(prompts), setting.batch):
        part = prompts[first : first + setting.batch]
        seeds = [setting.seed + first + i for i in range(len(part))]
        out = resources.pipeline(part, decoding=decoding, blocks=setting.blocks, seed=seeds)
        raise_errors(out.errors)
        stats.append(out.stats)
    return RouterCalibration(stats)

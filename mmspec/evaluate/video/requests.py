"""What benches ask video models for: held-out prompts of motion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.evaluate.image.requests import Request
from mmspec.zoo.world.moving import HELD_OUT, sample_moving
from mmspec.zoo.world.moving_prompts import moving_prompt

if TYPE_CHECKING:
    from mmspec.evaluate.video.config import VideoSetting
    from mmspec.evaluate.video.resources import VideoResources

FIRST = HELD_OUT + (1 << 18)  # behind the scenes that trainers measure on
CALIBRATION = FIRST + (1 << 15)  # of what thresholds and learned routers are fitted on
STEP = 1 << 16  # seeds between the prompts of one bench seed and the next


def prompts_of(count: int, seed: int = 0, first: int = FIRST) -> list[Request]:
    """`count` prompts of motion; those of different seeds and of another `first` are disjoint."""
    texts = [moving_prompt(sample_moving(first + STEP * seed + i), seed) for i in range(count)]
    return [Request(text, text) for text in texts]


def requests_of(resources: VideoResources, count: int, seed: int = 0) -> list[Request]:
    """Prompts, or labels in turn for a model that draws classes."""
    config = getattr(getattr(resources.pipeline.model, "transformer", None), "config", None)
    if getattr(config, "model_type", None) == "c2i":
        return [Request(i % config.num_classes, f"class {i % config.num_classes}") for i in range(count)]
    return prompts_of(count, seed)


def cases(resources: VideoResources, setting: VideoSetting) -> list[list[Request]]:
    """The requests of every batch of a setting."""
    return setting.batches(requests_of(resources, setting.prompts, setting.seed))

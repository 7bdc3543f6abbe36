"""What benches ask continuous models for: classes in turn, and the text that scores an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.evaluate.image.requests import Request, requests_of
from mmspec.zoo.world.pictures import class_names

if TYPE_CHECKING:
    from mmspec.evaluate.continuous.config import ContinuousSetting
    from mmspec.evaluate.continuous.resources import ContinuousResources


def labels(resources: ContinuousResources, count: int, seed: int = 0) -> list[Request]:
    """`count` classes in turn, in words where they are the zoo's."""
    if resources.classes == len(class_names()):
        return requests_of("c2i", count, seed)
    return [Request(i % resources.classes, f"class {i % resources.classes}") for i in range(count)]


def cases(resources: ContinuousResources, setting: ContinuousSetting) -> list[list[Request]]:
    """The requests of every batch of a setting."""
    return setting.batches(labels(resources, setting.prompts, setting.seed))

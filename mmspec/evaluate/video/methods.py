"""A method `mmspec bench video` compares, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmspec.evaluate.engine.method import Method
from mmspec.evaluate.video.kinds import BLOCKS

if TYPE_CHECKING:
    from mmspec.evaluate.video.config import VideoSetting
    from mmspec.evaluate.video.resources import VideoResources

PLAIN, ALONE = "ar", "draft"


@dataclass(frozen=True, slots=True)
class Way:
    """A pipeline and the arguments that say how it draws."""

    pipeline: Any
    arguments: dict[str, Any]


Make = Callable[["VideoResources", "VideoSetting"], Way]


def plain(resources: VideoResources, setting: VideoSetting) -> Way:
    """The target alone."""
    return Way(resources.pipeline, {})


@dataclass(frozen=True, slots=True)
class VideoMethod(Method):
    """make: how it draws; what it needs is loaded, and routers are calibrated, when it is called.   kind: of models it is
    for.   bitwise: its videos are the target's, bit for bit.   knob: what a family differs in, such as the share of drafts
    that a router was calibrated to let stand.
    """

    make: Make = plain
    kind: str = BLOCKS
    bitwise: bool = False
    knob: float | None = None

    def row(self) -> dict:
        return {"method": self.title, "key": self.key, "family": self.family, "knob": self.knob}

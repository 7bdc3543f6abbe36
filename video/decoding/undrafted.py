"""Decodings of videos without drafts: the target alone, or the drafter alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from mmspec.core.round.loop import Drafter, NoDraft
from mmspec.methods import MethodParts, method
from mmspec.video.decoding.block_drafter import check_drafter, model_of, reader_of
from mmspec.video.decoding.request import VideoRequest
from mmspec.video.decoding.target import BlockTarget
from mmspec.video.model import BlockVideoModel
from mmspec.video.routing.routers import Router, TargetAlone


class VideoDecoding(Protocol):
    """A way to decide the blocks of a video."""

    def prepare(self, model: BlockVideoModel, request: VideoRequest) -> tuple[BlockTarget, Drafter, Router]:
        """Return the target, the drafter and the rule of one request."""


@method(
    "ar",
    domain="video",
    kind="decoding",
    title="target alone",
    exact=True,
    models=("blocks",),
    order=0,
    about="the target generates every block",
)
@dataclass(frozen=True, slots=True)
class PlainVideoDecoding:
    """The target alone generates every block, through the same loop. Exact."""

    def prepare(self, model: BlockVideoModel, request: VideoRequest) -> tuple[BlockTarget, Drafter, Router]:
        rule = TargetAlone()
        return BlockTarget(model, request, rule), NoDraft(), rule


@dataclass(frozen=True, slots=True)
class DrafterAlone:
    """A smaller model generates every block, the first included. Relaxed, since no block is the target's."""

    drafter: Any

    def rule(self, model: BlockVideoModel) -> Router:
        router = TargetAlone()
        router.exact, router.name = False, "drafter alone (relaxed)"
        return router

    def prepare(self, model: BlockVideoModel, request: VideoRequest) -> tuple[BlockTarget, Drafter, Router]:
        check_drafter(self.drafter, model, request)
        rule, read = self.rule(model), reader_of(self.drafter, request)
        return BlockTarget(model_of(self.drafter), replace(request, read=read), rule), NoDraft(), rule


@method(
    "draft",
    domain="video",
    kind="decoding",
    title="drafter alone",
    exact=False,
    models=("blocks",),
    needs=("draft",),
    about="the drafter generates every block",
    order=1,
)
def drafter_alone(parts: MethodParts) -> DrafterAlone:
    """`DrafterAlone` with the smaller pipeline of a model.

    Args:
        parts: The model and the smaller pipeline, "draft".
    """
    return DrafterAlone(parts.part("draft"))

"""Decodings of block videos and their routers by name, as the command line takes them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mmspec.evaluate.engine.config import check_choice, check_overrides
from mmspec.evaluate.video.methods import PipelineCall, routed
from mmspec.evaluate.video.resources import VideoResources
from mmspec.methods import parse
from mmspec.video.routing.routers import Router, Threshold


def router_of(text: str) -> Router:
    """The router that a text asks for, such as "strided:budget=3" or "hybrid:run=3,least=0.2".

    Raises:
        ValueError: A name, a setting or a value is unknown, or a setting is missing.
    """
    return parse(text, "video", "router", "--router").make()


DECODINGS = {
    "ar": "the target alone; exact",
    "draft": "the drafter alone",
    "sdvg": "the drafter, and the target where a router does not let a draft stand; relaxed",
}
SYNCS = ("lazy", "eager", "rebuilt")
REDUCTIONS = ("min", "mean")
_TAKES = ("threshold", "router", "reduction", "sync")


@dataclass(frozen=True, slots=True)
class VideoDecodingOverrides:
    """What a user asked of sdvg; None leaves it as it is.

    threshold, router: one of them must be said, see `router_of`.   reduction: "min" or "mean" of a block's frames.
    sync: "lazy", "eager" or "rebuilt", see `SDVG`.
    """

    threshold: float | None = None
    router: str | None = None
    reduction: str | None = None
    sync: str | None = None


def pipeline_call(
    name: str, resources: VideoResources, wishes: VideoDecodingOverrides = VideoDecodingOverrides()
) -> PipelineCall:
    """The pipeline and its arguments for the decoding called `name`.

    Raises ValueError for unknown names, wishes that cannot be granted, settings that a router refuses, and where there is no
    drafter or reward.
    """
    check_choice("--decoding", name, DECODINGS, f" for {resources.name}, a model of blocks")
    for field in fields(wishes):
        value = getattr(wishes, field.name)
        if value is not None and name != "sdvg":
            raise ValueError(f"--{field.name}: expected --decoding sdvg, got {name!r}, leave --{field.name} out")
    if name == "ar":
        return PipelineCall(resources.pipeline, {})
    if name == "draft":
        return PipelineCall(resources.alone(), {})
    if (wishes.threshold is None) == (wishes.router is None):
        both = "none" if wishes.router is None else "both"
        raise ValueError(
            f"--threshold: expected it or --router for --decoding sdvg, got {both}, say which drafts stand"
        )
    check_overrides(wishes, "--decoding sdvg", _TAKES, reduction=REDUCTIONS, sync=SYNCS)
    router = Threshold(wishes.threshold) if wishes.router is None else router_of(wishes.router)
    make = routed(lambda resources, setting: router, wishes.sync or "lazy", wishes.reduction or "min")
    return make(resources, None)

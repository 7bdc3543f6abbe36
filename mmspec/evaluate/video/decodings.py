"""Decodings of block videos and their routers by name, as the command line takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from mmspec.evaluate.engine.config import check_choice, check_overrides
from mmspec.evaluate.video.methods import PipelineCall, routed
from mmspec.evaluate.video.resources import VideoResources
from mmspec.io.validation import number_in_text
from mmspec.video.routing.learned import Advantage, Learned
from mmspec.video.routing.routers import Explore, Hybrid, Random, Relative, Router, Strided, Threshold


def _hybrid(run: int, least: float) -> Router:
    return Hybrid(run, Threshold(least))


def _learned(model: str, gain: float = 0.0) -> Router:
    return Learned(Advantage.from_pretrained(model), gain)


# name -> (maker, what its settings are read as, how many of them must be named)
ROUTERS: dict[str, tuple[Callable[..., Router], dict[str, type], int]] = {
    "threshold": (Threshold, {"least": float}, 1),
    "relative": (Relative, {"margin": float}, 1),
    "strided": (Strided, {"budget": int}, 1),
    "random": (Random, {"budget": int}, 1),
    "hybrid": (_hybrid, {"run": int, "least": float}, 2),
    "explore": (Explore, {"rate": float}, 1),
    "learned": (_learned, {"model": str, "gain": float}, 1),
}


def router_of(text: str) -> Router:
    """The router of "name:setting=value,...", such as "strided:budget=3" or "hybrid:run=3,least=0.2".

    Raises ValueError for unknown names and settings, missing ones, and values that the router refuses.
    """
    name, _, rest = text.partition(":")
    check_choice("--router", name, ROUTERS)
    make, types, needed = ROUTERS[name]
    given = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    if not set(given) <= set(types) or not set(list(types)[:needed]) <= set(given):
        shown = ",".join(f"{one}=..." for one in types)
        raise ValueError(f"--router: expected {name}:{shown}, got {text!r}, write it so")
    try:
        return make(**{one: number_in_text(one, value, types[one]) for one, value in given.items()})
    except ValueError as error:
        raise ValueError(
            f"--router: expected settings of {name} that fit, got {text!r} ({error}), correct them"
        ) from error


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

"""Decodings of block videos and their routers by name, as the command line takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mmspec.evaluate.video.methods import PipelineCall
from mmspec.evaluate.video.resources import VideoResources
from mmspec.io.validation import number_in_text

if TYPE_CHECKING:
    from mmspec.video.routing.routers import Router


def _threshold(least: float) -> Router:
    from mmspec.video.routing.routers import Threshold

    return Threshold(least)


def _relative(margin: float) -> Router:
    from mmspec.video.routing.routers import Relative

    return Relative(margin)


def _strided(budget: int) -> Router:
    from mmspec.video.routing.routers import Strided

    return Strided(budget)


def _random(budget: int) -> Router:
    from mmspec.video.routing.routers import Random

    return Random(budget)


def _hybrid(run: int, least: float) -> Router:
    from mmspec.video.routing.routers import Hybrid

    return Hybrid(run, _threshold(least))


def _explore(rate: float) -> Router:
    from mmspec.video.routing.routers import Explore

    return Explore(rate)


def _learned(model: str, gain: float = 0.0) -> Router:
    from mmspec.video.routing.learned import Advantage, Learned

    return Learned(Advantage.from_pretrained(model), gain)


# name -> (maker, what its settings are read as, those that must be named)
ROUTERS: dict[str, tuple[Callable[..., Router], dict[str, type], int]] = {
    "threshold": (_threshold, {"least": float}, 1),
    "relative": (_relative, {"margin": float}, 1),
    "strided": (_strided, {"budget": int}, 1),
    "random": (_random, {"budget": int}, 1),
    "hybrid": (_hybrid, {"run": int, "least": float}, 2),
    "explore": (_explore, {"rate": float}, 1),
    "learned": (_learned, {"model": str, "gain": float}, 1),
}


def router_of(text: str) -> Router:
    """The router of "name:setting=value,...", such as "strided:budget=3" or "hybrid:run=3,least=0.2".

    Raises ValueError for unknown names and settings, missing ones, and values that the router refuses.
    """
    name, _, rest = text.partition(":")
    if name not in ROUTERS:
        raise ValueError(f"--router: expected one of {', '.join(ROUTERS)}, got {name!r}, pick one of these")
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
    if name not in DECODINGS:
        raise ValueError(f"--decoding: expected one of {', '.join(DECODINGS)} for {resources.name}, a model of blocks, got "
                         f"{name!r}, pick one of these")  # fmt: skip
    for field in fields(wishes):
        value = getattr(wishes, field.name)
        if value is not None and name != "sdvg":
            raise ValueError(f"--{field.name}: expected --decoding sdvg, got {name!r}, leave --{field.name} out")
    if name == "ar":
        return PipelineCall(resources.pipeline, {})
    return (
        PipelineCall(resources.alone(), {})
        if name == "draft"
        else PipelineCall(resources.pipeline, {"decoding": _sdvg(resources, wishes)})
    )


def _sdvg(resources: VideoResources, wishes: VideoDecodingOverrides) -> Any:
    from mmspec.video.decoding.sdvg import SDVG
    from mmspec.video.routing.routers import Threshold
    from mmspec.video.wan.rebuilt import Rebuilt

    if (wishes.threshold is None) == (wishes.router is None):
        both = "none" if wishes.router is None else "both"
        raise ValueError(
            f"--threshold: expected it or --router for --decoding sdvg, got {both}, say which drafts stand"
        )
    for field, known in (("reduction", REDUCTIONS), ("sync", SYNCS)):
        value = getattr(wishes, field)
        if value is not None and value not in known:
            raise ValueError(f"--{field}: expected one of {', '.join(known)}, got {value!r}, pick one of these")
    router = Threshold(wishes.threshold) if wishes.router is None else router_of(wishes.router)
    sync: Any = Rebuilt() if wishes.sync == "rebuilt" else wishes.sync or "lazy"
    reward = resources.reward() if router.needs.reward else None
    return SDVG(resources.drafter(), reward, router=router, reduction=wishes.reduction or "min", sync=sync)

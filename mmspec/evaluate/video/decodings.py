"""Ways to draw a video of blocks by name, as the command line makes them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mmspec.evaluate.video.methods import Way
from mmspec.evaluate.video.resources import VideoResources
from mmspec.evaluate.video.routers import router_of

DECODINGS = {
    "ar": "the target alone; exact",
    "draft": "the drafter alone",
    "sdvg": "the drafter, and the target where a router does not let a draft stand; relaxed",
}
SYNCS = ("lazy", "eager", "rebuilt")
REDUCTIONS = ("min", "mean")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a user asked of sdvg; None leaves it as it is.

    threshold, router: one of them must be said, see `router_of`.   reduction: "min" or "mean" of a block's frames.
    sync: "lazy", "eager" or "rebuilt", see `SDVG`.
    """

    threshold: float | None = None
    router: str | None = None
    reduction: str | None = None
    sync: str | None = None


def way_of(name: str, resources: VideoResources, wishes: Wishes = Wishes()) -> Way:
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
        return Way(resources.pipeline, {})
    return (
        Way(resources.alone(), {})
        if name == "draft"
        else Way(resources.pipeline, {"decoding": _sdvg(resources, wishes)})
    )


def _sdvg(resources: VideoResources, wishes: Wishes) -> Any:
    from mmspec.video.decoding.sdvg import SDVG
    from mmspec.video.routing.thresholds import Threshold
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
    reward = resources.reward() if router.judges else None
    return SDVG(resources.drafter(), reward, router=router, reduction=wishes.reduction or "min", sync=sync)

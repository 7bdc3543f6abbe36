"""Makers of what benches of videos compare; what each needs is imported, loaded and calibrated when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mmspec.evaluate.video.calibration import calibration
from mmspec.evaluate.video.methods import Make, Way

if TYPE_CHECKING:
    from mmspec.evaluate.image.drafters import Make as MakeCodes
    from mmspec.evaluate.video.config import VideoSetting
    from mmspec.evaluate.video.resources import VideoResources
    from mmspec.video.routing.router import Router

MakeRouter = Callable[["VideoResources", "VideoSetting"], "Router"]


def alone(resources: VideoResources, setting: VideoSetting) -> Way:
    """The drafter draws every block, the first one too."""
    return Way(resources.alone(), {})


def routed(router: MakeRouter, sync: str = "lazy", reduction: str = "min") -> Make:
    """A maker of `SDVG`.   sync: "lazy", "eager" or "rebuilt"."""

    def make(resources: VideoResources, setting: VideoSetting) -> Way:
        from mmspec.video.decoding.sdvg import SDVG
        from mmspec.video.wan.rebuilt import Rebuilt

        chosen = router(resources, setting)
        reward = resources.reward() if chosen.judges else None
        context: Any = Rebuilt() if sync == "rebuilt" else sync
        decoding = SDVG(resources.drafter(), reward, router=chosen, reduction=reduction, sync=context)
        return Way(resources.pipeline, {"decoding": decoding})

    return make


def codes(make: MakeCodes) -> Make:
    """A maker of a decoding of codes, as images have it."""
    return lambda resources, setting: Way(resources.pipeline, {"decoding": make(resources.codes)})


def fixed(least: float) -> MakeRouter:
    """A threshold in the reward's own unit."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        from mmspec.video.routing.thresholds import Threshold

        return Threshold(least)

    return make


def threshold(share: float, reduction: str = "min") -> MakeRouter:
    """The threshold that let such a share of other videos' drafts stand."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        from mmspec.video.routing.thresholds import Threshold

        if share in (0, 1):
            return Threshold(math.inf if share == 0 else -math.inf)
        return Threshold.accepting(share, calibration(resources, setting).scores(reduction)[0])

    return make


def relative(share: float, reduction: str = "min") -> MakeRouter:
    """The margin below a video's own first block that let such a share of other videos' drafts stand."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        from mmspec.video.routing.thresholds import Relative

        return Relative.accepting(share, *calibration(resources, setting).scores(reduction))

    return make


def hybrid(run: int, share: float) -> MakeRouter:
    """At most `run` drafts in a row, and a calibrated threshold that redraws earlier."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        from mmspec.video.routing.mixed import Hybrid

        return Hybrid(run, threshold(share)(resources, setting))

    return make


def learned(share: float) -> MakeRouter:
    """Predicted gains, up to the one that let such a share of other videos' drafts stand."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        from mmspec.video.routing.learned import Learned

        found = calibration(resources, setting)
        model = resources.once(f"advantage {setting.blocks} {setting.seed}", found.advantage)
        return Learned(model, found.gain(model, share))

    return make


def budgeted(name: str, share: float) -> MakeRouter:
    """`Strided` or `Random`, by name, with as many target blocks as leave such a share of the others to the drafter."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        from mmspec.video.routing import budgets

        blocks = setting.blocks or resources.pipeline.blocks
        return getattr(budgets, name.title())(1 + round((1 - share) * (blocks - 1)))

    return make

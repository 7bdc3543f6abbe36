"""The methods that `mmspec bench video` compares, factories of their decodings, and router calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mmspec.evaluate.engine.drawn import DrawnMethod
from mmspec.evaluate.engine.runs import raise_errors
from mmspec.evaluate.model_kinds import BLOCKS
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.resources import CALIBRATION, VideoResources, motion_prompts
from mmspec.methods import parse
from mmspec.video.decoding.output import VideoStats
from mmspec.video.decoding.sdvg import SDVG
from mmspec.video.rewards.scores import Reduction, reduced
from mmspec.video.routing.learned import Advantage, Learned, scored_pairs, train_advantage
from mmspec.video.routing.routers import Explore, Hybrid, Relative, Router, Threshold, threshold_for_share
from mmspec.video.wan.rebuilt import Rebuilt

PLAIN, ALONE = "ar", "draft"


@dataclass(frozen=True, slots=True)
class PipelineCall:
    """A pipeline and the arguments that say how it draws."""

    pipeline: Any
    arguments: dict[str, Any]


VideoDecodingFactory = Callable[[VideoResources, VideoSetting], PipelineCall]


def plain(resources: VideoResources, setting: VideoSetting) -> PipelineCall:
    """The target alone."""
    return PipelineCall(resources.pipeline, {})


@dataclass(frozen=True, slots=True)
class VideoMethod(DrawnMethod):
    """make: how it draws; what it needs is loaded, and routers are calibrated, when it is called.   kind: of models it is
    for.   bitwise: its videos are the target's, bit for bit.   knob: such as the share of drafts that a
    router was calibrated to let stand.
    """

    make: VideoDecodingFactory = plain
    kind: str = BLOCKS
    bitwise: bool = False


EXPLORED_SHARE = 0.4  # of drafts that stand while it is tried out


@dataclass(frozen=True, slots=True)
class RouterCalibration:
    """stats: of requests routed by `Explore`."""

    stats: list[VideoStats]

    def scores(self, reduction: Reduction = "min") -> tuple[list[float], list[float]]:
        """Of every draft, and beside it of the block that began its video."""

        def score(frames: list[float]) -> float:
            return reduced(torch.tensor(frames), reduction).item()

        pairs = [
            (score(block.scores), score(row[0].own_scores))
            for one in self.stats
            for row in one.records
            for block in row[1:]
            if block.scores is not None
        ]
        own, anchors = zip(*pairs, strict=True) if pairs else ((), ())
        return list(own), list(anchors)

    def advantage(self) -> Advantage:
        """A model of what redrawing gains.   Raises ValueError where too few blocks were drawn twice."""
        return train_advantage(*scored_pairs(self.stats)).model

    def gain(self, model: Advantage, share: float) -> float:
        """The predicted gain that such a share of the drafts does not exceed."""
        features, _ = scored_pairs(self.stats)
        with torch.no_grad():
            return -threshold_for_share(share, (-model(features)).tolist())


def router_calibration(resources: VideoResources, setting: VideoSetting) -> RouterCalibration:
    """Of `setting.calibration` videos, drawn once for a bench."""
    return resources.once(f"calibration {setting.blocks} {setting.seed}", lambda: _explore_videos(resources, setting))


def _explore_videos(resources: VideoResources, setting: VideoSetting) -> RouterCalibration:
    decoding, found = SDVG(resources.drafter(), resources.reward(), router=Explore(EXPLORED_SHARE)), []
    asked = [one.given for one in motion_prompts(setting.calibration, setting.seed, CALIBRATION)]
    for first in range(0, len(asked), setting.batch):
        part = asked[first : first + setting.batch]
        seeds = [setting.seed + first + i for i in range(len(part))]
        out = resources.pipeline(part, decoding=decoding, blocks=setting.blocks, seed=seeds)
        raise_errors(out.errors)
        found.append(out.stats)
    return RouterCalibration(found)


RouterFactory = Callable[[VideoResources, VideoSetting], Router]


def alone(resources: VideoResources, setting: VideoSetting) -> PipelineCall:
    """The drafter draws every block, the first one too."""
    return PipelineCall(resources.alone(), {})


def routed(router: RouterFactory, sync: str = "lazy", reduction: str = "min") -> VideoDecodingFactory:
    """A maker of `SDVG`.   sync: "lazy", "eager" or "rebuilt"."""

    def make(resources: VideoResources, setting: VideoSetting) -> PipelineCall:
        chosen = router(resources, setting)
        reward = resources.reward() if chosen.needs.reward else None
        context: Any = Rebuilt() if sync == "rebuilt" else sync
        decoding = SDVG(resources.drafter(), reward, router=chosen, reduction=reduction, sync=context)
        return PipelineCall(resources.pipeline, {"decoding": decoding})

    return make


def codes(decoding: str) -> VideoDecodingFactory:
    """A maker of a decoding of codes from its text."""
    call = parse(decoding, "video", "decoding")
    return lambda resources, setting: PipelineCall(resources.pipeline, {"decoding": call.make(resources.codes)})


def fixed(least: float) -> RouterFactory:
    """A threshold in the reward's own unit."""
    return lambda resources, setting: Threshold(least)


def threshold(share: float, reduction: str = "min") -> RouterFactory:
    """The threshold that let such a share of other videos' drafts stand."""
    if share in (0, 1):
        return fixed(math.inf if share == 0 else -math.inf)
    return lambda resources, setting: Threshold.accepting(
        share, router_calibration(resources, setting).scores(reduction)[0]
    )


def relative(share: float, reduction: str = "min") -> RouterFactory:
    """The margin below a video's own first block that let such a share of other videos' drafts stand."""
    return lambda resources, setting: Relative.accepting(
        share, *router_calibration(resources, setting).scores(reduction)
    )


def hybrid(run: int, share: float) -> RouterFactory:
    """At most `run` drafts in a row, and a calibrated threshold that redraws earlier."""
    return lambda resources, setting: Hybrid(run, threshold(share)(resources, setting))


def learned(share: float) -> RouterFactory:
    """Predicted gains, up to the one that let such a share of other videos' drafts stand."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        found = router_calibration(resources, setting)
        model = resources.once(f"advantage {setting.blocks} {setting.seed}", found.advantage)
        return Learned(model, found.gain(model, share))

    return make


def budgeted(kind: Callable[[int], Router], share: float) -> RouterFactory:
    """`Strided` or `Random` with as many target blocks as leave such a share of the others to the drafter."""

    def make(resources: VideoResources, setting: VideoSetting) -> Router:
        blocks = setting.blocks or resources.pipeline.blocks
        return kind(1 + round((1 - share) * (blocks - 1)))

    return make

"""The methods that `mmspec bench video` compares, factories of their decodings, and router calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mmspec.evaluate.engine.drawn import DrawnMethod
from mmspec.evaluate.engine.runs import raise_errors
from mmspec.evaluate.model_kinds import BLOCKS, CODES
from mmspec.evaluate.video.config import VideoSetting
from mmspec.evaluate.video.decodings import PLAIN, PipelineCall, pipeline_call
from mmspec.evaluate.video.resources import CALIBRATION, VideoResources, motion_prompts
from mmspec.methods import parse
from mmspec.video.decoding.output import VideoStats
from mmspec.video.decoding.sdvg import SDVG
from mmspec.video.rewards.scores import Reduction, reduced
from mmspec.video.routing.learned import Advantage, Learned, scored_pairs, train_advantage
from mmspec.video.routing.routers import Explore, Hybrid, Relative, Router, Threshold, threshold_for_share

RouterFactory = Callable[[VideoResources, VideoSetting], Router]


@dataclass(frozen=True, slots=True)
class VideoMethod(DrawnMethod):
    """A row of a bench.

    Attributes:
        decoding: The decoding as text, see `mmspec.methods.parse`.
        kind: The models it is for.
        bitwise: Whether its videos are the target's, bit for bit.
        router: Calibrates the router of the decoding to the share of drafts that its knob says; None for the text's own.
    """

    decoding: str = PLAIN
    kind: str = BLOCKS
    bitwise: bool = False
    router: RouterFactory | None = None

    def make(self, resources: VideoResources, setting: VideoSetting) -> PipelineCall:
        """How it draws; what it needs is loaded, and its router is calibrated, now."""
        router = None if self.router is None else self.router(resources, setting)
        made = pipeline_call(parse(self.decoding, "video", "decoding", models=self.kind), resources, router)
        if self.kind == CODES and self.rule != "exact":
            made.arguments["rule"] = resources.codes.rule(self.rule)
        return made


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


def threshold(share: float, reduction: str = "min") -> RouterFactory:
    """The threshold that let such a share of other videos' drafts stand."""
    if share in (0, 1):
        return lambda resources, setting: Threshold(math.inf if share == 0 else -math.inf)
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

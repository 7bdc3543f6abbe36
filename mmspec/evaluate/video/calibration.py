"""What routers learn from videos that none of the measured ones is among: scores of drafts, and what redrawing gained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mmspec.evaluate.video.requests import CALIBRATION, prompts_of

if TYPE_CHECKING:
    from mmspec.evaluate.video.config import VideoSetting
    from mmspec.evaluate.video.resources import VideoResources
    from mmspec.video.decoding.stats import VideoStats
    from mmspec.video.rewards.scores import Reduction
    from mmspec.video.routing.learned import Advantage

RATE = 0.4  # of drafts that stand while it is tried out


@dataclass(frozen=True, slots=True)
class Calibration:
    """stats: of requests routed by `Explore`."""

    stats: list[VideoStats]

    def scores(self, reduction: Reduction = "min") -> tuple[list[float], list[float]]:
        """Of every draft, and beside it of the block that began its video."""
        from mmspec.video.rewards.scores import reduced

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
        from mmspec.video.routing.training import scored_pairs, train_advantage

        return train_advantage(*scored_pairs(self.stats)).model

    def gain(self, model: Advantage, share: float) -> float:
        """The predicted gain that such a share of the drafts does not exceed."""
        from mmspec.video.routing.thresholds import least_of
        from mmspec.video.routing.training import scored_pairs

        features, _ = scored_pairs(self.stats)
        with torch.no_grad():
            return -least_of(share, (-model(features)).tolist())


def calibration(resources: VideoResources, setting: VideoSetting) -> Calibration:
    """Of `setting.calibration` videos, drawn once for a bench."""
    return resources.once(f"calibration {setting.blocks} {setting.seed}", lambda: _explored(resources, setting))


def _explored(resources: VideoResources, setting: VideoSetting) -> Calibration:
    from mmspec.video.decoding.sdvg import SDVG
    from mmspec.video.routing.mixed import Explore

    decoding, found = SDVG(resources.drafter(), resources.reward(), router=Explore(RATE)), []
    asked = [one.given for one in prompts_of(setting.calibration, setting.seed, CALIBRATION)]
    for first in range(0, len(asked), setting.batch):
        part = asked[first : first + setting.batch]
        seeds = [setting.seed + first + i for i in range(len(part))]
        out = resources.pipeline(part, decoding=decoding, blocks=setting.blocks, seed=seeds)
        if out.errors:
            raise ValueError("; ".join(out.errors.values()))
        found.append(out.stats)
    return Calibration(found)

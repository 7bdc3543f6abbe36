"""The bench of videos, tied together."""

from __future__ import annotations

from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.model_kinds import BLOCKS
from mmspec.evaluate.video.config import VideoBenchConfig
from mmspec.evaluate.video.page import describe, page, panels
from mmspec.evaluate.video.quality import FIELDS, QUALITY, VideoReference
from mmspec.evaluate.video.resources import VideoResources, cases, open_video
from mmspec.evaluate.video.rows import certainty, complete
from mmspec.evaluate.video.runner import runner

TIMING = (
    "whole calls with pixels; medians of paired ratios; spread: 10th and 90th percentile; seconds of passes are taken from "
    "target and drafter alone, of decoding from the target alone, of scores from all requests that had some"
)


def environment(config: VideoBenchConfig, resources: VideoResources) -> dict:
    """What a bench file says of the model and the measuring."""
    suite, model = config.plan(), resources.pipeline.model
    return {
        "model": resources.name,
        "kind": resources.kind,
        "draft": config.draft,
        "reward": resources.scorer if resources.kind == BLOCKS else None,
        "dtype": str(next(model.transformer.parameters()).dtype).removeprefix("torch."),
        "prompts": config.prompts if suite.timed else None,
        "judged_prompts": config.judged_prompts if suite.judged else None,
        "draws": config.draws if suite.judged else None,
        "calibration": config.calibration if resources.kind == BLOCKS else None,
        "timing": TIMING if suite.timed else None,
        "quality": QUALITY if suite.judged else None,
    }


DOMAIN = Domain(
    name="video",
    shows="film",
    config=VideoBenchConfig,
    output="videos of the target alone, bit for bit",
    resources=lambda config: open_video(config.model, config.draft, config.reward),
    cases=cases,
    runner=runner,
    certainty=certainty,
    environment=environment,
    describe=describe,
    page=page,
    panels=panels,
    complete=complete,
    reference=VideoReference,
    quality={name: name for name in FIELDS},
)

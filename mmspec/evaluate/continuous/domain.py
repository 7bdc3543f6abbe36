"""The bench of continuous tokens, tied together."""

from __future__ import annotations

from mmspec.evaluate.continuous.certainty import certainty
from mmspec.evaluate.continuous.config import Config
from mmspec.evaluate.continuous.page import describe, page, panels
from mmspec.evaluate.continuous.quality import Reference
from mmspec.evaluate.continuous.requests import cases
from mmspec.evaluate.continuous.resources import ContinuousResources, open_continuous
from mmspec.evaluate.continuous.rows import complete
from mmspec.evaluate.continuous.runner import runner
from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.quality.gallery import FIELDS, QUALITY

TIMING = (
    "whole calls with pixels, where there is an autoencoder; medians of paired ratios; spread: 10th and 90th percentile; c: "
    "seconds of a pass of the drafter with its head over those of plain decoding"
)


def environment(config: Config, resources: ContinuousResources) -> dict:
    """What a bench file says of the model and the measuring."""
    suite = config.plan()
    return {
        "model": resources.name,
        "kind": resources.kind,
        "draft": config.draft,
        "dtype": str(next(resources.transformer.parameters()).dtype).removeprefix("torch."),
        "values": resources.total,
        "head_steps": resources.head_steps,
        "prompts": config.prompts if suite.timed else None,
        "images": config.images if suite.judged else None,
        "timing": TIMING,
        "quality": QUALITY if suite.judged else None,
    }


DOMAIN = Domain(
    name="continuous",
    config=Config,
    output="tokens of plain decoding, bit for bit",
    resources=lambda config: open_continuous(config.model, config.draft, config.num_sampling_steps),
    cases=cases,
    runner=runner,
    certainty=certainty,
    environment=environment,
    describe=describe,
    page=page,
    panels=panels,
    complete=complete,
    reference=Reference,
    quality={name: name for name in FIELDS} | {"judged_batch": "batch", "judged_step_compression": "step_compression"},
)

"""The bench of image models, tied together."""

from __future__ import annotations

from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.image.certainty import certainty
from mmspec.evaluate.image.config import Config
from mmspec.evaluate.image.page import describe, page, panels
from mmspec.evaluate.image.quality import Reference
from mmspec.evaluate.image.requests import cases
from mmspec.evaluate.image.resources import ImageResources, zoo_resources
from mmspec.evaluate.image.rows import complete
from mmspec.evaluate.image.runner import runner
from mmspec.evaluate.quality.gallery import FIELDS, QUALITY

TIMING = "whole calls with prefill and pixels; medians of paired ratios; spread: 10th and 90th percentile"


def environment(config: Config, resources: ImageResources) -> dict:
    """What a bench file says of the model and the measuring."""
    model, suite = resources.pipeline.model, config.plan()
    return {
        "model": resources.name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "values": model.geometry.total,
        "codes": model.codes,
        "prompts": config.prompts if suite.timed else None,
        "images": config.images if suite.judged else None,
        "timing": TIMING,
        "quality": QUALITY,
    }


DOMAIN = Domain(
    name="image",
    config=Config,
    output="codes of plain decoding",
    resources=lambda config: zoo_resources(config.model),
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

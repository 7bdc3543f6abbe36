"""The bench of vision-language models, tied together."""

from __future__ import annotations

from mmspec.evaluate.engine.domain import Domain
from mmspec.evaluate.vlm.certainty import certainty
from mmspec.evaluate.vlm.config import Config
from mmspec.evaluate.vlm.page import describe, page, panels
from mmspec.evaluate.vlm.requests import cases
from mmspec.evaluate.vlm.resources import VlmResources, zoo_resources
from mmspec.evaluate.vlm.rows import complete
from mmspec.evaluate.vlm.runner import runner
from mmspec.evaluate.vlm.same_drafts import same_drafts

TIMING = (
    "whole calls with vision tower and prefill; medians of paired ratios of seconds per emitted token; spread: "
    "10th and 90th percentile"
)


def environment(config: Config, resources: VlmResources) -> dict:
    """What a bench file says of the model and the measuring."""
    return {
        "model": resources.name,
        "dtype": str(resources.model.dtype).removeprefix("torch."),
        "prompts": config.prompts,
        "timing": TIMING,
    }


DOMAIN = Domain(
    name="vlm",
    config=Config,
    output="tokens of transformers",
    resources=lambda config: zoo_resources(config.plan().model, config.dtype),
    cases=cases,
    runner=runner,
    certainty=certainty,
    environment=environment,
    describe=describe,
    page=page,
    panels=panels,
    complete=complete,
    extras=same_drafts,
    may_fail=lambda row: row["key"].startswith("hf-"),  # what transformers itself refuses
)

"""The bench of image models, tied together: row fields, the quality reference and the domain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from mmspec.evaluate.engine.domain import Domain, TimedSetting
from mmspec.evaluate.engine.rows import Margin, parting
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.engine.statistics import middle
from mmspec.evaluate.image.certainty import certainty, margin_at, observe_laws, target_figures
from mmspec.evaluate.image.config import ImageBenchConfig, ImageSetting
from mmspec.evaluate.image.methods import PLAIN
from mmspec.evaluate.image.page import describe, page, panels
from mmspec.evaluate.image.resources import ImageResources, requests_of, zoo_resources
from mmspec.evaluate.image.runner import cases, make_draw, runner
from mmspec.evaluate.quality.gallery import FIELDS, QUALITY, GalleryReference


def complete(timed: TimedSetting, rows: Mapping[str, dict]) -> None:
    """Adds to the rows of a setting the values a pass, the drafter's passes, and where greedy ones differ at ties only."""
    for method in timed.methods:
        row, own = rows[method.key], timed.results[method.key]
        row["step_compression"] = row["accept_length"]
        row["drafter_passes"] = middle([run.drafter_passes for run in completed(own)], 1)
        if timed.setting.temperature == 0:
            row |= parting(timed.results[PLAIN], own, lambda case: _margin(timed, case))


def _margin(timed: TimedSetting, case: int) -> Margin:
    """By how much plain decoding preferred its values in a case to the likeliest others."""
    watched = observe_laws(timed.resources, timed.setting, timed.cases[case], 0)
    return lambda row, place, other: margin_at(watched, row, place)


def reference(config: ImageBenchConfig, resources: ImageResources, setting: ImageSetting) -> GalleryReference:
    """Plain images of a setting, how sure the target is and how many codes it uses."""
    asked = requests_of(setting.model, setting.prompts, setting.seed)
    make = partial(make_draw, resources=resources, setting=setting)
    figures = partial(target_figures, resources, setting, asked, seed=setting.seed)
    return GalleryReference(config.rows[0], setting, asked, make, resources.scorer, figures)


TIMING = "whole calls with prefill and pixels; medians of paired ratios; spread: 10th and 90th percentile"


def environment(config: ImageBenchConfig, resources: ImageResources) -> dict:
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
    shows="picture",
    config=ImageBenchConfig,
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
    reference=reference,
    quality={name: name for name in FIELDS} | {"judged_batch": "batch", "judged_step_compression": "step_compression"},
)

"""The domain of images of codes: requests, methods by name, and sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL.Image import Image

from mmspec import zoo
from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.domain import SamplingOverrides, TimedSetting
from mmspec.evaluate.engine.rows import Margin, parting, tie_of
from mmspec.evaluate.engine.runs import Sampler, completed
from mmspec.evaluate.engine.statistics import middle
from mmspec.evaluate.gallery import QUALITY
from mmspec.evaluate.image import page
from mmspec.evaluate.image.config import ImageBenchConfig, ImageSetting
from mmspec.evaluate.image.figures import codes_run, margin_at, observe_laws, target_figures
from mmspec.evaluate.image.methods import ImageMethod
from mmspec.evaluate.image.suites import SUITES, SWEPT
from mmspec.evaluate.pictures import (
    GenerationRequest,
    PictureDomain,
    caption_prompts,
    class_prompts,
    requests_of,
)
from mmspec.methods import MethodCall, parse
from mmspec.run.decoding_options import PLAIN
from mmspec.run.image_models import (
    ImageResources,
    decoding_names,
    decoding_of,
    folder_resources,
    zoo_resources,
)
from mmspec.run.model_kinds import IMAGE_MODELS
from mmspec.run.placement import clock, weights_of
from mmspec.run.timed_run import TimedRun

TIMING = "whole calls with prefill and pixels; medians of paired ratios; spread: 10th and 90th percentile"
GUIDANCE = 4.0  # of the zoo's models in judged benches; a model of a folder has its own


class ImageDomain(PictureDomain):
    """Image models whose tokens are codes, from the zoo or from folders."""

    name, config, suites, models = "image", ImageBenchConfig, SUITES, IMAGE_MODELS
    output = "codes of plain decoding"
    figures = staticmethod(target_figures)
    describe, page, panels = staticmethod(page.describe), staticmethod(page.page), staticmethod(page.panels)

    def open(self, model: str, config: ImageBenchConfig | None = None) -> ImageResources:
        return zoo_resources(model) if model in IMAGE_MODELS else folder_resources(Path(model))

    def requests(self, resources: ImageResources, setting: ImageSetting) -> list[GenerationRequest]:
        prompts = requests_of(setting.model, -(-setting.prompts // setting.pictures), setting.seed)
        return [prompts[number // setting.pictures] for number in range(setting.prompts)]

    def arguments(self, method: ImageMethod, resources: ImageResources, setting: ImageSetting) -> dict[str, Any]:
        return {"decoding": method.make(resources), "rule": method.rule_of(resources), **setting.arguments()}

    def sampler(self, method: ImageMethod, resources: ImageResources, setting: ImageSetting) -> Sampler:
        """Return a function that draws a batch of images; its time includes the pixels."""
        draw = self.draw(method, resources, setting)

        def run(requests: Sequence[GenerationRequest], seed: int) -> tuple[TimedRun, list[Image]]:
            began = clock(resources.model.device)
            out = draw(requests, seed)
            return codes_run(out, clock(resources.model.device) - began), out.images

        return run

    def complete(self, timed: TimedSetting, rows: Mapping[str, dict]) -> None:
        """Add values per pass, drafter passes, and the differences of greedy rows at ties."""
        for method in timed.methods:
            row, own = rows[method.key], timed.results[method.key]
            row["step_compression"] = row["accept_length"]
            row["drafter_passes"] = middle([run.drafter_passes for run in completed(own)], 1)
            if timed.setting.temperature == 0:
                tie = tie_of(timed.resources.model.dtype)
                row |= parting(timed.results[PLAIN], own, lambda case: _margin(timed, case), tie)

    def environment(self, config: ImageBenchConfig, resources: ImageResources) -> dict:
        model, suite = resources.model, config.plan()
        return {
            "model": resources.name,
            **weights_of(resources),
            "values": model.geometry.total,
            "codes": model.codes,
            "prompts": config.prompts if suite.timed else None,
            "images": config.images if suite.judged else None,
            "timing": TIMING,
            "quality": QUALITY,
        }

    def defaults(self, model: str) -> list[tuple[str, str]]:
        """Return exact decodings and relaxed rules at several settings; EAGLE where the model has a trained drafter."""
        return [row for row in SWEPT if row[0] != "eagle" or f"{model}/eagle" in zoo.names()]

    def method(self, model: str, decoding: str, rule: str) -> ImageMethod:
        """Return a decoding of `mmspec image` with its settings, "sjd:window=32,init=up", or a bench row by key."""
        judged = parse(rule, "image", "rule", "--rule") if rule else None
        row = self.row(decoding) if decoding not in decoding_names() else None
        if row is not None:
            return replace(row, rule=rule or row.rule, title=_judged_title(row.title, judged))
        drafts = decoding_of(decoding)
        own, title = judged or drafts.rule, _judged_title(drafts.title, judged)
        return ImageMethod(decoding, title, "exact" if own is None else str(own), decoding=str(drafts.drafts))

    def drawn(self, model: str, wishes: SamplingOverrides) -> dict[str, Any]:
        zoos = model in IMAGE_MODELS
        return wishes.with_defaults(guidance=GUIDANCE if zoos else None, top_k=0 if zoos else None)

    def prompts(self, model: str, count: int, seed: int) -> list[EvaluationPrompt]:
        return class_prompts(count, seed) if model == "c2i" else caption_prompts(count, seed)

    def case(self, resources: ImageResources, setting: Any, prompt: EvaluationPrompt) -> list[GenerationRequest]:
        text = prompt.text if prompt.label is None or resources.draws_texts else str(prompt.label)
        return [GenerationRequest(resources.pipeline_prompts([text])[0], prompt.text)]


DOMAIN = ImageDomain()


def _margin(timed: TimedSetting, case: int) -> Margin:
    """Return by how much plain decoding preferred its values in a case to the second likeliest."""
    observer = observe_laws(timed.resources, timed.setting, timed.cases[case], 0)
    return lambda row, place, other: margin_at(observer, row, place)


def _judged_title(decoding: str, rule: MethodCall | None) -> str:
    """Return the title of a decoding under a rule, "SJD (window 32) + LANTERN (delta 0.2)"; "exact" is not named."""
    return decoding if rule is None or rule.method.name == "exact" else f"{decoding} + {rule.title}"

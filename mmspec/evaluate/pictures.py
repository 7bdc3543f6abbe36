"""Shared parts of the two picture domains: requests, prompts of the zoo's world, their scorer, and the base class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from mmspec import zoo
from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.base.provenance import files_digest
from mmspec.evaluate.engine.domain import Domain, SamplingOverrides, TimedSetting
from mmspec.evaluate.engine.drawn import DrawnSetting
from mmspec.evaluate.engine.runs import completed
from mmspec.evaluate.gallery import FIELDS, GalleryReference
from mmspec.evaluate.quality.features import Scorer
from mmspec.evaluate.report.bench_page import COLUMNS as SHARED
from mmspec.evaluate.report.bench_page import IMAGE_COLUMNS, Cell, figure
from mmspec.imagegen.base_pipeline import ImageOutput
from mmspec.run.decoding_options import PLAIN
from mmspec.run.timed_run import raise_errors
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.world.image import (
    CLASSES,
    HELD_OUT,
    class_image_scene,
    class_names,
    image_prompt,
    named_objects,
    render_image_scene,
    sample_image_scene,
)
from mmspec.zoo.world.language import with_article

FIRST = HELD_OUT + (1 << 18)  # after the pictures of the trainers' evaluations
STEP = 1 << 16  # seeds between the prompts of one bench seed and the next
COLUMNS: dict[str, Cell] = {**SHARED, **IMAGE_COLUMNS, "knob": figure("knob")}


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for a picture or video."""

    prompt: str | int  # as the pipeline takes it, a text or a label
    text: str  # the prompt in words, for CLIP and the judge


def requests_of(model: str, count: int, seed: int = 0) -> list[GenerationRequest]:
    """Return `count` prompts for the zoo's "t2i", or classes in turn for "c2i"; different seeds give disjoint prompts."""
    if model == "c2i":
        names = class_names()
        return [GenerationRequest(i % len(names), with_article(names[i % len(names)])) for i in range(count)]
    prompts = [image_prompt(sample_image_scene(FIRST + STEP * seed + i), 0) for i in range(count)]
    return [GenerationRequest(prompt, prompt) for prompt in prompts]


DrawImages = Callable[[Sequence[GenerationRequest], int | Sequence[int]], ImageOutput]


def caption_prompts(count: int, seed: int) -> list[EvaluationPrompt]:
    """Return prompts of the zoo's world, each with a rendered picture of it for `real`."""
    firsts = range(FIRST + STEP * seed, FIRST + STEP * seed + count)
    return [
        EvaluationPrompt(f"picture-{first}", (request.text,), real=partial(_real_picture, first))
        for first, request in zip(firsts, requests_of("t2i", count, seed), strict=True)
    ]


def class_prompts(count: int, seed: int) -> list[EvaluationPrompt]:
    """Return the classes of the zoo's world in turn, each with a different real picture."""
    return [
        EvaluationPrompt(
            f"class-{i}", (request.text,), i % CLASSES, real=partial(_real_class, i % CLASSES, FIRST + STEP * seed + i)
        )
        for i, request in enumerate(requests_of("c2i", count, seed))
    ]


def _real_picture(seed: int) -> Image.Image:
    return Image.fromarray(render_image_scene(sample_image_scene(seed)))


def _real_class(label: int, seed: int) -> Image.Image:
    return Image.fromarray(render_image_scene(class_image_scene(label, seed)))


class ObjectsDrawn:
    """The share of the objects of a prompt whose colour and shape the zoo's judge recognises."""

    name, about = "objects_drawn", "share of asked objects whose color and shape the zoo's judge finds"

    def __init__(self) -> None:
        self.judge, self.hash = zoo.load("image_judge"), files_digest([folder_of("image_judge")])

    def __call__(self, outputs: Sequence[Image.Image], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        return np.array(
            [
                self.judge.agreement([image], [prompt.text]) if named_objects(prompt.text) else np.nan
                for image, prompt in zip(outputs, prompts, strict=True)
            ],
            dtype=np.float64,
        )


class PictureDomain(Domain):
    """A domain of drawn pictures, which are compared with plain decoding's."""

    shows = "picture"
    quality = {name: name for name in FIELDS} | {"judged_batch": "batch", "judged_step_compression": "step_compression"}

    @abstractmethod
    def requests(self, resources: Any, setting: Any) -> list[GenerationRequest]:
        """Return the held-out requests of a setting."""

    @abstractmethod
    def arguments(self, method: Any, resources: Any, setting: Any) -> dict[str, Any]:
        """Return the arguments of the pipeline for a method and a setting; the parts of the method are loaded now."""

    @abstractmethod
    def figures(
        self, resources: Any, setting: Any, requests: Sequence[GenerationRequest], plain: Sequence[Any]
    ) -> dict:
        """Return the certainty of the target on these requests, and figures of the plain tokens [N, n] or [N, n, d]."""

    @abstractmethod
    def drawn(self, model: str, wishes: SamplingOverrides) -> dict[str, Any]:
        """Return the fields of a sweep's setting beside batch and temperature."""

    def setting(self, model: str, temperature: float, wishes: SamplingOverrides) -> DrawnSetting:
        drawn = self.drawn(model, wishes)
        return self.config.setting(batch=1, temperature=temperature, prompts=1, seed=0, model=model, **drawn)

    def draw(self, method: Any, resources: Any, setting: Any) -> DrawImages:
        """Return a function of (requests, seed) that generates their images."""
        arguments = self.arguments(method, resources, setting)

        def draw(requests: Sequence[GenerationRequest], seed: int | Sequence[int]) -> ImageOutput:
            out = resources.pipeline([request.prompt for request in requests], seed=seed, **arguments)
            raise_errors(out.errors)
            return out

        return draw

    def cases(self, resources: Any, setting: Any) -> list[list[GenerationRequest]]:
        return setting.batches(self.requests(resources, setting))

    def certainty(self, timed: TimedSetting) -> dict:
        plain = [image for run in completed(timed.results[PLAIN]) for image in run.output]
        return self.figures(timed.resources, timed.setting, [run for case in timed.cases for run in case], plain)

    def reference(self, config: Any, resources: Any, setting: Any) -> GalleryReference:
        requests = self.requests(resources, setting)
        make = partial(self.draw, resources=resources, setting=setting)
        figures = partial(self.figures, resources, setting, requests)
        return GalleryReference(config.rows[0], setting, requests, make, resources.scorer, figures)

    def scorers(self, model: str) -> list[Scorer]:
        return [ObjectsDrawn()] if model in self.models else []

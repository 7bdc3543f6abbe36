"""Image models of codes in sweeps: decodings by name, prompts and classes of the world, real pictures of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from mmspec import zoo
from mmspec.evaluate.engine.domain import SamplingOverrides, Sweep
from mmspec.evaluate.engine.prompt import EvaluationPrompt
from mmspec.evaluate.image.config import ImageSetting
from mmspec.evaluate.image.decodings import decoding_names, decoding_of
from mmspec.evaluate.image.resources import (
    FIRST,
    STEP,
    GenerationRequest,
    ImageResources,
    folder_resources,
    requests_of,
    zoo_resources,
)
from mmspec.evaluate.image.runner import sampler
from mmspec.evaluate.image.suites import SUITES, SWEPT, ImageMethod
from mmspec.evaluate.model_kinds import IMAGE_MODELS
from mmspec.methods import MethodCall, parse
from mmspec.zoo.files.registry import folder_of
from mmspec.zoo.world.image import CLASSES, class_image_scene, named_objects, render_image_scene, sample_image_scene

GUIDANCE = 4.0  # of the zoo's models, as benches judge them; a model of a folder has its own


def defaults(model: str) -> list[tuple[str, str]]:
    """Plain decoding, exact decodings, and relaxed ones at several settings; the trained drafter where the model has one."""
    return [one for one in SWEPT if one[0] != "eagle" or f"{model}/eagle" in zoo.names()]


def method(model: str, decoding: str, rule: str) -> ImageMethod:
    """A decoding of `mmspec image` with its settings, "sjd:window=32,init=up", or a row of the benches by its key."""
    judged = parse(rule, "image", "rule", "--rule") if rule else None
    rows = (one for suite in SUITES.values() for one in suite.methods if one.key == decoding)
    found = next(rows, None) if decoding not in decoding_names() else None
    if found is not None:
        return replace(found, rule=rule or found.rule, title=_title(found.title, judged))
    asked = decoding_of(decoding)
    own = judged or asked.rule
    title = _title(asked.title, judged)
    return ImageMethod(decoding, title, "exact" if own is None else str(own), decoding=str(asked.drafts))


def _title(decoding: str, rule: MethodCall | None) -> str:
    """What tables call a decoding under a rule: "SJD (window 32) + LANTERN (delta 0.2)"; the usual exact rule has no name."""
    return decoding if rule is None or rule.method.name == "exact" else f"{decoding} + {rule.title}"


def setting(model: str, temperature: float, wishes: SamplingOverrides) -> ImageSetting:
    zoos = model in IMAGE_MODELS
    drawn = wishes.given(guidance=GUIDANCE if zoos else None, top_k=0 if zoos else None)
    return ImageSetting(batch=1, temperature=temperature, prompts=1, seed=0, model=model, **drawn)


def prompts(model: str, count: int, seed: int) -> list[EvaluationPrompt]:
    """Prompts of the zoo's text-to-image model, each with a picture the world has of it; classes in turn for its other one."""
    if model == "c2i":
        return class_prompts(count, seed)
    asked = requests_of("t2i", count, seed)
    return [
        EvaluationPrompt(
            f"picture-{FIRST + STEP * seed + i}", (one.text,), real=partial(_real_picture, FIRST + STEP * seed + i)
        )
        for i, one in enumerate(asked)
    ]


def class_prompts(count: int, seed: int) -> list[EvaluationPrompt]:
    """Classes of the world in turn, each with another picture of it."""
    return [
        EvaluationPrompt(
            f"class-{i}",
            (one.text,),
            label=i % CLASSES,
            real=partial(_real_class_picture, i % CLASSES, FIRST + STEP * seed + i),
        )
        for i, one in enumerate(requests_of("c2i", count, seed))
    ]


def _real_picture(seed: int) -> Image.Image:
    return Image.fromarray(render_image_scene(sample_image_scene(seed)))


def _real_class_picture(label: int, seed: int) -> Image.Image:
    return Image.fromarray(render_image_scene(class_image_scene(label, seed)))


def case(resources: ImageResources, setting: ImageSetting, prompt: EvaluationPrompt) -> list[GenerationRequest]:
    text = prompt.text if prompt.label is None or resources.draws_texts else str(prompt.label)
    return [GenerationRequest(resources.given([text])[0], prompt.text)]


class ObjectsDrawn:
    """Of the objects that a prompt in the world's words asks for, the share whose colour and shape the zoo's judge finds."""

    name, about = "objects_drawn", "share of asked objects whose color and shape the zoo's judge finds"

    def __init__(self) -> None:
        from mmspec.evaluate.engine.provenance import files_digest

        self.judge, self.hash = zoo.load("image_judge"), files_digest([folder_of("image_judge")])

    def __call__(self, made: Sequence[Image.Image], prompts: Sequence[EvaluationPrompt]) -> np.ndarray:
        return np.array([
            self.judge.agreement([image], [one.text]) if named_objects(one.text) else np.nan
            for image, one in zip(made, prompts, strict=True)
        ], dtype=np.float64)  # fmt: skip


def open_model(model: str) -> ImageResources:
    return zoo_resources(model) if model in IMAGE_MODELS else folder_resources(Path(model))


SWEEP = Sweep(
    models=IMAGE_MODELS,
    shows="picture",
    temperatures=(1.0,),
    defaults=defaults,
    method=method,
    setting=setting,
    open=open_model,
    prompts=prompts,
    case=case,
    sampler=sampler,
    scorers=lambda model: [ObjectsDrawn()] if model in IMAGE_MODELS else [],
)

"""The pipelines that `mmspec image` draws with: models of discrete and of continuous tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, refusing, spinner
from mmspec.cli.options import check_scale, flag_of, refuse_unreadable

if TYPE_CHECKING:
    from mmspec.evaluate.continuous.resources import ContinuousResources
    from mmspec.evaluate.image.resources import ImageResources
    from mmspec.methods import Domain


@dataclass(frozen=True, slots=True)
class OpenedPipeline:
    """A pipeline and how it is called. name: of the model.   given: prompts as the pipeline takes them.
    arguments: of every call.   total: values of a picture.   stride: of them in a row.   passes: of plain decoding.
    settings: what the record says of how values are drawn, by name.
    """

    pipeline: Any
    name: str
    given: Callable[[Sequence[str]], list]
    arguments: dict[str, Any]
    total: int
    stride: int
    passes: int
    settings: dict[str, Any]


Load = Callable[[str], "ImageResources"]
CONTINUOUS_OPTIONS = ("draft", "gamma", "tolerance", "num_iter")  # options that only models of continuous tokens have


def open_discrete_pipeline(
    model: str, decoding: str, wishes: dict[str, Any], settings: dict[str, Any], load: Load | None = None
) -> OpenedPipeline:
    """The pipeline with its drafter and rule. settings: as the pipeline takes them, None for the model's own.
    load: of the model by its name, None for one of pictures."""
    for name in CONTINUOUS_OPTIONS:
        if wishes[name] is not None:
            flag = flag_of(name)
            raise BadOption(f"{flag}: expected a model of continuous tokens, got {model!r}, leave {flag} out")
    overrides = {name: wishes[name] for name in ("coupling", "init", "drafter", "upsampler")}
    overrides = {"window": _window(wishes["window"]), **overrides}
    with spinner("loading the model"):
        domain = "image" if load is None else "video"
        resources, decoding, rule = _resolved(
            model, decoding, wishes["rule"], overrides, load or _image_resources, domain
        )
    pipe, geometry = resources.pipeline, resources.pipeline.model.geometry
    own = {"guidance": pipe.guidance_scale, "top_k": pipe.top_k}
    shown = {
        "guidance": settings["guidance_scale"],
        **{one: settings[one] for one in ("temperature", "top_k", "top_p")},
    }
    shown = {name: own.get(name) if value is None else value for name, value in shown.items()}
    return OpenedPipeline(
        pipe,
        resources.name,
        resources.given,
        {"decoding": decoding, "rule": rule, **settings},
        geometry.total,
        geometry.stride,
        geometry.total,
        shown | {"filter_order": settings["filter_order"]},
    )


def _window(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadOption(f"--window: expected a number of values, got {text!r}, write for example 16")
    return int(text)


def _resolved(
    model: str, decoding: str, rule: str | None, wishes: dict, load: Load, domain: Domain
) -> tuple[ImageResources, object, object]:
    """The resources, the drafter and the rule."""
    from mmspec.evaluate.image.decodings import decoding_of

    with refusing():
        asked = decoding_of(decoding, wishes, domain)
    resources = load(model)
    with refusing():
        drafts, usual = asked.make(resources)
        return resources, drafts, resources.rule(rule or usual)


def _image_resources(model: str) -> ImageResources:
    """A model of pictures; refuses one of videos."""
    from mmspec.cli.console import quiet_transformers
    from mmspec.evaluate.image.resources import folder_resources, zoo_resources
    from mmspec.evaluate.model_kinds import IMAGE_MODELS

    if model in IMAGE_MODELS:
        return zoo_resources(model)
    if not Path(model).is_dir():
        zoo = ", ".join(IMAGE_MODELS)
        raise BadOption(f"--model: expected one of {zoo} or a folder with a saved pipeline, got {model!r}, correct it")
    quiet_transformers()
    with refuse_unreadable(model, "a folder with a saved pipeline"):
        resources = folder_resources(Path(model))
    frames = resources.pipeline.model.geometry.frames
    if frames > 1:
        raise BadOption(f"--model: expected a model of pictures, got {model!r}, which draws {frames} frames, call "
                        "`mmspec video`")  # fmt: skip
    return resources


DISCRETE_OPTIONS = ("coupling", "init", "drafter", "upsampler")  # options that only models of discrete tokens have
FILTERS = {"top_k": None, "top_p": 1.0, "filter_order": "top_k_first"}  # what they are where they are left out


def open_continuous_pipeline(
    model: str, decoding: str, wishes: dict[str, Any], settings: dict[str, Any]
) -> OpenedPipeline:
    """The pipeline and its arguments. settings: as for models of discrete tokens; continuous ones have no filters."""
    _check_continuous(model, wishes, settings)
    check_scale("--temperature", settings["temperature"])
    with spinner("loading the model"):
        from mmspec.evaluate.continuous.decodings import decoding_of
        from mmspec.evaluate.continuous.resources import open_continuous
        from mmspec.evaluate.decoding_options import check_needs
        from mmspec.evaluate.model_kinds import MASKED

        with refuse_unreadable(model, "a folder with a saved pipeline"):
            resources = open_continuous(model, wishes["draft"])
        with refusing():
            overrides = {name: wishes[name] for name in ("window", "gamma", "tolerance", "rule")}
            if wishes["draft"] is not None:
                check_needs("draft", decoding, "continuous", resources.kind)
            how = decoding_of(decoding, resources, overrides)
            if not resources.pixels:
                raise BadOption(
                    f"--model: expected an autoencoder beside the model in {model}, got none, save it there"
                )
    drawn = {"guidance_scale": settings["guidance_scale"], "temperature": settings["temperature"]}
    masked = resources.kind == MASKED
    steps = wishes["num_iter"]
    if masked:
        drawn["num_iter"] = steps = resources.pipeline.num_iter if steps is None else steps
    elif steps is not None:
        raise BadOption(f"--num-iter: expected a masked model, got {model!r}, leave it out")
    scale = resources.pipeline.guidance_scale if settings["guidance_scale"] is None else settings["guidance_scale"]
    shown = {"guidance": scale, "temperature": settings["temperature"]} | ({"num_iter": steps} if masked else {})
    return OpenedPipeline(resources.pipeline, resources.name, resources.given, how | drawn,
                  resources.total, math.isqrt(resources.total), _passes(resources, steps), shown)  # fmt: skip


def _check_continuous(model: str, wishes: dict[str, Any], settings: dict[str, Any]) -> None:
    """Refuses what does not apply to continuous tokens."""
    for name, value in (*((one, wishes[one]) for one in DISCRETE_OPTIONS), *((one, settings[one]) for one in FILTERS)):
        if value != FILTERS.get(name):
            flag = flag_of(name)
            raise BadOption(
                f"{flag}: expected a model of discrete tokens, got {model!r}, whose tokens are continuous, leave {flag} out"
            )


def _passes(resources: ContinuousResources, steps: int | None) -> int:
    """Of plain decoding."""
    if steps is None:
        return resources.total
    from mmspec.imagegen.continuous.schedules.generation_order import cosine_steps

    return len(cosine_steps(resources.total, steps))

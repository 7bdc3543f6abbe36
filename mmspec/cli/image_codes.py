"""`mmspec image` with models of discrete tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, refusing, waiting
from mmspec.cli.drawing import Opened
from mmspec.cli.models import reading

if TYPE_CHECKING:
    from mmspec.evaluate.image.resources import ImageResources

FILTER_ORDERS = ("top_k_first", "top_p_first")
Load = Callable[[str], "ImageResources"]
VECTORS = ("draft", "gamma", "tolerance", "num_iter")  # options that only models of vectors have


def open_codes(
    model: str, decoding: str, wishes: dict[str, Any], settings: dict[str, Any], load: Load | None = None
) -> Opened:
    """The pipeline with its drafter and rule. settings: as the pipeline takes them, None for the model's own.
    load: of the model by its name, None for one of pictures."""
    for name in VECTORS:
        if wishes[name] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise BadOption(f"{flag}: expected a model of continuous tokens, got {model!r}, leave {flag} out")
    asked = {name: wishes[name] for name in ("coupling", "init", "drafter", "upsampler")}
    asked["window"] = _window(wishes["window"])
    with waiting("loading the model"):
        resources, decoding, rule = _resolved(model, decoding, wishes["rule"], asked, load or _pictures)
    pipe, geometry = resources.pipeline, resources.pipeline.model.geometry
    own = {"guidance": pipe.guidance_scale, "top_k": pipe.top_k}
    said = {"guidance": settings["guidance_scale"], **{one: settings[one] for one in ("temperature", "top_k", "top_p")}}
    said = {name: own.get(name) if value is None else value for name, value in said.items()}
    return Opened(pipe, resources.name, resources.given, {"decoding": decoding, "rule": rule, **settings}, geometry.total,
                  geometry.stride, geometry.total, said | {"filter_order": settings["filter_order"]})  # fmt: skip


def _window(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadOption(f"--window: expected a number of values, got {text!r}, write for example 16")
    return int(text)


def _resolved(
    model: str, decoding: str, rule: str | None, wishes: dict, load: Load
) -> tuple[ImageResources, object, object]:
    """The resources, the drafter and the rule."""
    from mmspec.evaluate.image.decodings import Wishes, check_decoding, decoding_of, short_name

    decoding = short_name(decoding)
    wishes |= {name: short_name(wishes[name]) for name in ("drafter", "upsampler") if wishes[name] is not None}
    with refusing():
        check_decoding(decoding, Wishes(**wishes))
    resources = load(model)
    with refusing():
        drafts, usual = decoding_of(decoding, resources, Wishes(**wishes))
        return resources, drafts, resources.rule(rule or usual)


def _pictures(model: str) -> ImageResources:
    """A model of pictures; refuses one of videos."""
    from mmspec.cli.console import quiet_transformers
    from mmspec.evaluate.image.resources import ZOO_MODELS, folder_resources, zoo_resources

    if model in ZOO_MODELS:
        return zoo_resources(model)
    if not Path(model).is_dir():
        zoo = ", ".join(ZOO_MODELS)
        raise BadOption(f"--model: expected one of {zoo} or a folder with a saved pipeline, got {model!r}, correct it")
    quiet_transformers()
    with reading(model, "a folder with a saved pipeline"):
        resources = folder_resources(Path(model))
    frames = resources.pipeline.model.geometry.frames
    if frames > 1:
        raise BadOption(f"--model: expected a model of pictures, got {model!r}, which draws {frames} frames, call "
                        "`mmspec video`")  # fmt: skip
    return resources

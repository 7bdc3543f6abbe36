"""Kinds of image, continuous and video models, from a name in the zoo or a folder. Imports no models."""

from __future__ import annotations

from pathlib import Path

from mmspec import zoo

MODEL_INDEX = "model_index.json"
IMAGE_MODELS = ("t2i", "c2i")

MASKED, CAUSAL = "masked", "causal"
CONTINUOUS_MODELS = {"mar": MASKED, "car": CAUSAL}
CONTINUOUS_PIPELINES = {"MARPipeline": MASKED, "ContinuousARPipeline": CAUSAL}


def in_zoo(name: str) -> bool:
    """Return whether the zoo has weights of a name such as "mar" or "video/draft"."""
    return name in zoo.names()


def _pipeline_class(folder: Path) -> str | None:
    """Return the class name in a saved pipeline's index."""
    from mmspec.io.readers import read_json

    index = read_json(folder / MODEL_INDEX) if (folder / MODEL_INDEX).is_file() else {}
    name = index.get("_class_name") if isinstance(index, dict) else None
    return name if isinstance(name, str) else None


def _continuous_kind(model: str) -> str | None:
    """Return the kind of a model of continuous tokens, None for any other model."""
    if model in CONTINUOUS_MODELS:
        return CONTINUOUS_MODELS[model]
    return CONTINUOUS_PIPELINES.get(_pipeline_class(Path(model))) if Path(model).is_dir() else None


def is_continuous(model: str) -> bool:
    """Return whether the tokens of a model of the zoo or of a folder are vectors."""
    return _continuous_kind(model) is not None


def continuous_kind(model: str, option: str = "--model") -> str:
    kind = _continuous_kind(model)
    if kind is None:
        known, kinds = ", ".join(CONTINUOUS_MODELS), " or ".join(CONTINUOUS_PIPELINES)
        raise ValueError(
            f"{option}: expected one of {known} or a folder with a saved {kinds}, got {model!r}, correct it"
        )
    return kind


BLOCKS, CODES = "blocks", "codes"
VIDEO_MODELS = {"video": BLOCKS, "video/tokens": CODES}
VIDEO_PIPELINE = "BlockVideoPipeline"
# pipelines of diffusers, which `mmspec.video.from_diffusers` converts
DIFFUSERS_PIPELINES = (
    "AnyFlowFARPipeline",
    "HeliosPipeline",
    "HeliosPyramidPipeline",
    "SkyReelsV2DiffusionForcingPipeline",
)


def video_kind(model: str, option: str = "--model") -> str:
    """Return the kind of a video model; a folder is of codes unless its index names a pipeline of blocks."""
    if model in VIDEO_MODELS:
        return VIDEO_MODELS[model]
    if not Path(model).is_dir():
        known = ", ".join(VIDEO_MODELS)
        raise ValueError(
            f"{option}: expected one of {known} or a folder with a saved pipeline, got {model!r}, correct it"
        )
    class_name = _pipeline_class(Path(model))
    if class_name in DIFFUSERS_PIPELINES:
        raise ValueError(
            f"{option}: expected a pipeline that save_pretrained of mmspec wrote, got diffusers' {class_name} in "
            f"{model!r}, load it with diffusers and pass it to mmspec.video.from_diffusers"
        )
    return BLOCKS if class_name == VIDEO_PIPELINE else CODES


def zoo_part(name: str, option: str = "--model") -> object:
    if not in_zoo(name):
        raise ValueError(
            f"{option}: expected weights of the zoo's {name}, got none yet, run `mmspec zoo build {name}` or "
            "name something else"
        )
    return zoo.load(name)

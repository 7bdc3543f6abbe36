"""Which models of videos there are, told from a name or a folder. Imports no models."""

from __future__ import annotations

from pathlib import Path

from mmspec import zoo

BLOCKS, CODES = "blocks", "codes"
ZOO_MODELS = {"video": BLOCKS, "video/tokens": CODES}
PIPELINE = "BlockVideoPipeline"
INDEX = "model_index.json"
# of diffusers, which Python alone turns into ours
DIFFUSERS = ("AnyFlowFARPipeline", "HeliosPipeline", "HeliosPyramidPipeline", "SkyReelsV2DiffusionForcingPipeline")


def kind_of(model: str, option: str = "--model") -> str:
    """The kind of a model of the zoo or of a folder; a folder is of codes unless its index says that it draws blocks.

    Raises ValueError for anything else, and for a damaged index.
    """
    if model in ZOO_MODELS:
        return ZOO_MODELS[model]
    if not Path(model).is_dir():
        known = ", ".join(ZOO_MODELS)
        raise ValueError(
            f"{option}: expected one of {known} or a folder with a saved pipeline, got {model!r}, correct it"
        )
    from mmspec.core.readers import read_json

    index = read_json(Path(model) / INDEX) if (Path(model) / INDEX).is_file() else {}
    found = index.get("_class_name") if isinstance(index, dict) else None
    if found in DIFFUSERS:
        raise ValueError(f"{option}: expected a pipeline that save_pretrained of mmspec wrote, got diffusers' {found} in "
                         f"{model!r}, load it with diffusers and pass it to mmspec.video.from_diffusers")  # fmt: skip
    return BLOCKS if found == PIPELINE else CODES


def in_zoo(name: str) -> bool:
    """Whether the zoo has weights of "video", "video/draft"..."""
    return name in zoo.names()


def zoo_part(name: str, option: str = "--model") -> object:
    """What the zoo has under this name.   Raises ValueError, which says how to build it, where it has no weights."""
    if not in_zoo(name):
        raise ValueError(f"{option}: expected weights of the zoo's {name}, got none yet, run `mmspec zoo build {name}` or "
                         "name something else")  # fmt: skip
    return zoo.load(name)

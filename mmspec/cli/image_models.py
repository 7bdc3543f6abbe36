"""The discrete image models that `mmspec image --model` names: of the zoo, in a folder, or of a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.console import BadOption, quiet_transformers
from mmspec.cli.options import HUB_ID, PIPELINE, refuse_unreadable
from mmspec.zoo.files.table import MODELS

if TYPE_CHECKING:
    from mmspec.run.image_models import ImageResources


def image_resources(model: str, dtype: str = "auto") -> ImageResources:
    """Load a model of the zoo, a folder or a hub id; `dtype`, "auto" that of the files, and network are the hub's."""
    from mmspec.run.image_models import folder_resources, zoo_resources
    from mmspec.run.model_kinds import IMAGE_MODELS

    if model in IMAGE_MODELS:
        return zoo_resources(model)
    quiet_transformers()
    if not Path(model).is_dir():
        if model in MODELS:
            raise BadOption(
                f"--model: expected a model of pictures, got the zoo's {model!r}, which draws none; use t2i"
            )
        if HUB_ID.fullmatch(model):
            return _hub_resources(model, dtype)
        zoo = ", ".join(IMAGE_MODELS)
        raise BadOption(
            f"--model: expected one of {zoo}, {PIPELINE} or a hub id 'owner/name', got {model!r}, correct it"
        )
    with refuse_unreadable(model, PIPELINE):
        resources = folder_resources(Path(model))
    frames = resources.pipeline.model.geometry.frames
    if frames > 1:
        raise BadOption(
            f"--model: expected a model of pictures, got {model!r}, which draws {frames} frames, call `mmspec video`"
        )
    return resources


def _hub_resources(repo: str, dtype: str) -> ImageResources:
    import torch
    import transformers

    from mmspec.imagegen import pipeline_for
    from mmspec.io.checkpoints import load_model, load_part
    from mmspec.run.image_models import ImageResources

    name = _supported_class(repo)
    precision: Any = dtype if dtype == "auto" else getattr(torch, dtype)
    with refuse_unreadable(repo, "a hub id of a transformers model that draws"):
        model = load_model(getattr(transformers, name), repo, local=False, dtype=precision)
        processor = load_part(transformers.AutoProcessor, repo, local=False)
        return ImageResources(pipeline_for(model, processor), repo)


def _supported_class(repo: str) -> str:
    """Return the class of a hub id, read from its config before any weight is downloaded."""
    from transformers import AutoConfig

    from mmspec.imagegen.adapters.registry import supported
    from mmspec.io.checkpoints import load_part

    with refuse_unreadable(repo, "a hub id of a transformers model that draws"):
        architectures = load_part(AutoConfig, repo, local=False).architectures or ()
    families = [family.name for family in supported() if family.pixels]
    name = next((name for name in families if name in architectures), None)
    if name is None:
        raise BadOption(
            f"--model: expected a hub id of {' or '.join(families)}, whose pixels transformers can decode, got {repo!r} of "
            f"{', '.join(architectures) or 'no class'}; see `mmspec supported image`"
        )
    return name

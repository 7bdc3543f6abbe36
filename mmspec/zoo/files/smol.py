"""The captioner `vlm/smol` in its folder: its projector alone. Its tower is that of "vlm", its text model is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mmspec.io.checkpoints import load_model
from mmspec.zoo.architectures.smol import ProjectorSize, WindowProjector, compose, new_processor, picture_id
from mmspec.zoo.files.scorers import load_scorer, save_scorer

if TYPE_CHECKING:
    from transformers import CLIPVisionModel, LlavaForConditionalGeneration, LlavaProcessor


def read_tower(folder: Path) -> CLIPVisionModel:
    """The vision tower of the LLaVA stored in `folder`, fp32 in evaluation mode.

    Raises:
        ValueError: There is no such model, or its files are damaged.
    """
    from transformers import LlavaForConditionalGeneration

    return load_model(LlavaForConditionalGeneration, folder, dtype=torch.float32).model.vision_tower


def write_projector(projector: WindowProjector, folder: Path) -> None:
    """Write the projector alone.

    Args:
        projector: Trained in float32; its weights are stored as fp16 safetensors.
        folder: Receives the weights and config.json with the sizes.
    """
    save_scorer(projector, projector.size, folder)


def read_projector(folder: Path) -> WindowProjector:
    """The projector stored in `folder`, fp32 in evaluation mode.

    Raises:
        ValueError: The files are damaged or do not fit.
    """
    return load_scorer(ProjectorSize, WindowProjector, folder)


def read_captioner(
    folder: Path, tower: Path, language: tuple[Any, Any]
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """The captioner in evaluation mode, in the precision of its text model, and its processor.

    Args:
        folder: Of the projector.
        tower: Folder of the LLaVA whose vision tower it sees with.
        language: The text model, which becomes a part of the captioner, and its tokenizer.

    Raises:
        ValueError: The files are damaged, the parts do not fit each other, or the tokenizer has no token for pictures.
    """
    model, tokenizer = language
    picture = picture_id(tokenizer)
    return compose(read_tower(tower), read_projector(folder), model, picture), new_processor(tokenizer)

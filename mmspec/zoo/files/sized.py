"""Files of models that are saved with their sizes, such as the models that score pictures: fp16 weights and a config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from mmspec.io.loading import load_module
from mmspec.io.pretrained import CONFIG, WEIGHTS, write_weights
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import from_fields
from mmspec.zoo.architectures.object_detector import DetectorNetwork, DetectorSize, ObjectDetector

if TYPE_CHECKING:
    from mmspec.zoo.architectures.clip import ImageClip

Size = TypeVar("Size")


def load_clip(folder: Path) -> ImageClip:
    # imported here, so that other scorers load without open_clip
    """Load the CLIP in `folder`, in fp32 and eval mode."""
    from mmspec.zoo.architectures.clip import ClipSize, ImageClip, new_clip

    return ImageClip(load_sized(ClipSize, lambda size: new_clip(size, seed=None), folder))


def load_detector(folder: Path) -> ObjectDetector:
    """Load the detector in `folder`, in fp32 and eval mode."""
    return ObjectDetector(load_sized(DetectorSize, DetectorNetwork, folder))


def save_sized(model: nn.Module, size: Any, folder: Path) -> None:
    """Write fp16 safetensors, and the fields of `size` as config.json."""
    state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    # the batch norms of CLIP count their batches in integers
    tensors = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    write_weights(tensors, asdict(size), folder)


def load_sized(kind: type[Size], build: Callable[[Size], nn.Module], folder: Path) -> Any:
    """Load a model that was saved with its sizes, of class `kind`, in fp32 and eval mode."""
    with naming(folder / CONFIG):
        size = from_fields(kind, read_json(folder / CONFIG))
    return load_module(lambda: build(size), folder / WEIGHTS)

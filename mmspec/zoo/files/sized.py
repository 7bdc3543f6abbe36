"""Models of sizes of their own, such as those that score pictures, in their folders: fp16 weights and a config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors.torch import save_file
from torch import nn

from mmspec.io.files import replacing, write_json_atomic
from mmspec.io.loading import load_module
from mmspec.io.readers import naming, read_json
from mmspec.io.validation import from_fields
from mmspec.zoo.architectures.object_detector import DetectorNetwork, DetectorSize, ObjectDetector

if TYPE_CHECKING:
    from mmspec.zoo.architectures.clip import ImageClip

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Size = TypeVar("Size")


def load_clip(folder: Path) -> ImageClip:
    """The CLIP stored in `folder`, fp32 in eval mode.   Raises ValueError for files that are damaged or do not fit."""
    # here, so that other scorers do not pay for the import of open_clip
    from mmspec.zoo.architectures.clip import ClipSize, ImageClip, new_clip

    return ImageClip(load_sized(ClipSize, lambda size: new_clip(size, seed=None), folder))


def load_detector(folder: Path) -> ObjectDetector:
    """The detector stored in `folder`, fp32 in eval mode.   Raises ValueError for files that are damaged or do not fit."""
    return ObjectDetector(load_sized(DetectorSize, DetectorNetwork, folder))


def save_sized(model: nn.Module, size: Any, folder: Path) -> None:
    """Write fp16 safetensors and the fields of `size` as config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    # the batch norms of CLIP count their batches in integers
    tensors = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    with replacing(folder / WEIGHTS) as partial:
        save_file(tensors, partial)
    write_json_atomic(folder / CONFIG, asdict(size))


def load_sized(kind: type[Size], build: Callable[[Size], nn.Module], folder: Path) -> Any:
    """The model that `build` returns for the stored size, with the stored weights, fp32 in eval mode.   Raises ValueError for
    files that are damaged or do not fit."""
    with naming(folder / CONFIG):
        size = from_fields(kind, read_json(folder / CONFIG))
    return load_module(lambda: build(size), folder / WEIGHTS)

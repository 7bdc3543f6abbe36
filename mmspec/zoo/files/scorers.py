"""The models that score pictures, CLIP and judge, in their folders: fp16 weights and a config of their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from open_clip.model import CLIP
from safetensors.torch import save_file
from torch import nn

from mmspec.core.config_fields import from_fields
from mmspec.core.files import replacing, write_json_atomic
from mmspec.core.loading import load_module
from mmspec.core.readers import naming, read_json

from ..architectures.clip import ClipSize, PictureClip, new_clip
from ..architectures.judge import ImageJudge, JudgeSize, Reader

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Size = TypeVar("Size")


def save_clip(model: CLIP, size: ClipSize, folder: Path) -> None:
    """Write fp16 safetensors and config.json."""
    save_scorer(model, size, folder)


def load_clip(folder: Path) -> PictureClip:
    """The CLIP stored in `folder`, fp32 in eval mode.   Raises ValueError for files that are damaged or do not fit."""
    return PictureClip(load_scorer(ClipSize, lambda size: new_clip(size, seed=None), folder))


def save_judge(model: Reader, folder: Path) -> None:
    """Write fp16 safetensors and config.json."""
    save_scorer(model, model.size, folder)


def load_judge(folder: Path) -> ImageJudge:
    """The judge stored in `folder`, fp32 in eval mode.   Raises ValueError for files that are damaged or do not fit."""
    return ImageJudge(load_scorer(JudgeSize, Reader, folder))


def save_scorer(model: nn.Module, size: Any, folder: Path) -> None:
    """Write fp16 safetensors and the fields of `size` as config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    # the batch norms of CLIP count their batches in integers
    tensors = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    with replacing(folder / WEIGHTS) as partial:
        save_file(tensors, partial)
    write_json_atomic(folder / CONFIG, asdict(size))


def load_scorer(kind: type[Size], build: Callable[[Size], nn.Module], folder: Path) -> Any:
    """What `build` makes of the stored size, with the stored weights, fp32 in eval mode.   Raises ValueError as above."""
    with naming(folder / CONFIG):
        size = from_fields(kind, read_json(folder / CONFIG))
    return load_module(lambda: build(size), folder / WEIGHTS)

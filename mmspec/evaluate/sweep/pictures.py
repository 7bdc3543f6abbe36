"""Pictures of prompt sets, found by name and opened through the gate when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from PIL.Image import Image

from mmspec.core.images import open_image

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def picture_files(folder: Path) -> list[Path]:
    """The pictures of a folder by name.   Raises ValueError where there is no folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with pictures, got none there; check the path")
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())


def picture_in(folder: Path, name: str, where: str) -> Callable[[], Image]:
    """A picture of a set, opened through the gate.   Raises ValueError for a name that leads out of the folder."""
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{where}: expected a picture inside {folder}, got {name!r}; name one that lies there")
    return partial(open_image, file)

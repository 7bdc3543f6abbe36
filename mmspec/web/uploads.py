"""Uploaded pictures: where they lie, how much room they take, and how they pass the package's gate before any decoder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.core.images import ImageError, open_image
from mmspec.web.limits import Limits, Refused

if TYPE_CHECKING:
    from PIL.Image import Image

NO_PICTURE = "picture: expected a PNG, JPEG or WebP file, got none, upload one or pick an example"
NO_UPLOAD = "expected an uploaded file, got a path or an address, upload the picture"
BLOCK = 4096  # bytes that the smallest file or folder takes on a disk


def open_uploaded(value: Any, uploads: Path, limits: Limits) -> Image:
    """Open an uploaded picture.

    Args:
        value: The file as gradio names it, an object with the field `path`; or the path itself.
        uploads: The folder that holds the uploaded files.
        limits: The limits on bytes and pixels.

    Returns:
        The picture as RGB of 8 bits.

    Raises:
        Refused: There is no file, it lies elsewhere, or the gate refuses it. The message does not name the file.
    """
    path = value.get("path") if isinstance(value, dict) else value
    if not isinstance(path, str):
        raise Refused(NO_PICTURE)
    if not is_uploaded(path, uploads):
        raise Refused(f"picture: {NO_UPLOAD}")
    try:
        return open_image(path, max_pixels=limits.pixels, max_bytes=limits.file_bytes)
    except ImageError as error:
        raise Refused(str(error).replace(path, "picture", 1)) from None


def is_uploaded(path: Any, uploads: Path) -> bool:
    """Whether a path names a file in the folder of uploads. An address, a folder and a link to elsewhere do not."""
    if not isinstance(path, str) or "://" in path:
        return False
    try:
        place = Path(path).resolve()
        return place.is_relative_to(uploads.resolve()) and place.is_file()
    except (OSError, ValueError):
        return False


def stored_bytes(uploads: Path) -> int:
    """Bytes on the disk below a folder; every file and every folder takes at least a block."""
    return sum(max(size, BLOCK) for size in _sizes(uploads))


def _sizes(uploads: Path) -> Iterator[int]:
    for folder, folders, files in os.walk(uploads):
        yield from (0 for _ in folders)
        for name in files:
            try:
                yield os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # deleted in the meantime
                continue

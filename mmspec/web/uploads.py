"""How a visitor's picture comes in: through the package's own gate, and decoded by nothing before it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.core.images import ImageError, open_image
from mmspec.web.limits import Limits, Refused

if TYPE_CHECKING:
    from PIL.Image import Image

NONE = "picture: expected a PNG, JPEG or WebP file, got none, upload one or pick an example"


def open_uploaded(path: Any, uploads: Path, limits: Limits) -> Image:
    """The picture in a file that was uploaded to the folder `uploads`, as RGB of 8 bits.

    Raises Refused, which does not name the file, for one that lies elsewhere, for one that the gate refuses, and for None.
    """
    if not isinstance(path, str):
        raise Refused(NONE)
    if not Path(path).resolve().is_relative_to(uploads.resolve()):
        raise Refused("picture: expected an uploaded file, got a path of the server, upload the picture")
    try:
        return open_image(path, max_pixels=limits.pixels, max_bytes=limits.file_bytes)
    except ImageError as error:
        raise Refused(str(error).replace(path, "picture", 1)) from None

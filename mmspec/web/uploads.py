"""How a visitor's picture comes in: through the package's own gate, and never decoded by anything before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from mmspec.core.images import ImageError, open_image
from mmspec.web.limits import Limits


class Picture(gr.Image):
    """An upload whose handler gets an RGB picture of 8 bits, or nothing; what the gate refuses is said in its sentence."""

    is_template = True  # for the page it is an ordinary gr.Image
    limits = Limits()

    def preprocess(self, payload: Any) -> Any:
        if payload is None or payload.path is None:
            return None
        try:
            return open_uploaded(payload.path, Path(self.GRADIO_CACHE), self.limits)
        except ImageError as error:
            raise gr.Error(str(error), print_exception=False) from error


def picture_upload(limits: Limits, label: str, elem_id: str, height: int) -> Picture:
    """An upload within limits."""
    made = Picture(type="pil", sources=["upload", "clipboard"], label=label, elem_id=elem_id, height=height, buttons=[])
    made.limits = limits
    return made


def open_uploaded(path: str, uploads: Path, limits: Limits) -> Any:
    """The picture in a file that was uploaded to the folder `uploads`.

    Raises ImageError, which does not name the file, for one that lies elsewhere or that the gate refuses.
    """
    file = Path(path)
    if not file.resolve().is_relative_to(uploads.resolve()):
        raise ImageError("picture: expected an uploaded file, got a path of the server, upload the picture")
    try:
        return open_image(file, max_pixels=limits.pixels, max_bytes=limits.file_bytes)
    except ImageError as error:
        raise ImageError(str(error).replace(str(path), "picture", 1)) from None

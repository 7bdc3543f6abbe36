"""The files that commands draw into: a video, and several images on one sheet."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.console import BadOption
from mmspec.io.files import WriteError
from mmspec.io.video_files import VIDEO_SUFFIXES, has_mp4_writer, write_video

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


def video_file(out: Path) -> tuple[Path, str | None]:
    """The file that frames go to, with a notice or None.

    Args:
        out: An MP4 or GIF file.

    Returns:
        `out` and None, or a GIF of its name and a notice where MP4 cannot be written.

    Raises:
        BadOption: `out` has another suffix.
    """
    if out.suffix.lower() not in VIDEO_SUFFIXES:
        raise BadOption(
            f"--out: expected a file that ends in {' or '.join(VIDEO_SUFFIXES)}, got {str(out)!r}, rename it"
        )
    if out.suffix.lower() == ".gif" or has_mp4_writer():
        return out, None
    other = out.with_suffix(".gif")
    return other, (f"MP4 needs an ffmpeg with H.264 (libx264), which imageio-ffmpeg brings and which is not installed: "
                   f'writing {other} instead of {out}; pip install "mmspec[video]"')  # fmt: skip


def save_video(frames: np.ndarray, out: Path, fps: float) -> None:
    """Write a video whole or not at all.

    Args:
        frames: uint8 [N, H, W, 3].
        out: The file.
        fps: Frames a second.

    Raises:
        WriteError: `out` cannot be written. The text names the file in the system's temporary folder that holds the frames.
    """
    try:
        write_video(frames, out, fps)
    except WriteError as error:
        spare = Path(tempfile.gettempdir()) / f"{out.stem}-{os.getpid()}{out.suffix}"
        try:
            write_video(frames, spare, fps)
        except (OSError, ValueError):
            raise error from None
        error.args = (f"{error}; the {len(frames)} finished frames are kept in {spare}",)
        raise error from None


SHEET_GAP = 2


def contact_sheet(pictures: Sequence[Image | None]) -> Image:
    """Pictures of the same size, row by row on a sheet about as wide as it is high; a single picture stays as it is.

    Args:
        pictures: At least one picture; the place of None stays white.
    """
    from PIL import Image

    if len(pictures) == 1:
        return pictures[0]
    columns = ceil(sqrt(len(pictures)))
    rows = ceil(len(pictures) / columns)
    width, height = (side + SHEET_GAP for side in next(picture.size for picture in pictures if picture is not None))
    sheet = Image.new("RGB", (columns * width - SHEET_GAP, rows * height - SHEET_GAP), "white")
    for number, picture in enumerate(pictures):
        if picture is not None:
            sheet.paste(picture, (number % columns * width, number // columns * height))
    return sheet

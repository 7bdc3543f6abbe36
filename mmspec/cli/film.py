"""Which file the frames of a command go to, and where they are kept if it cannot be written."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.cli.console import BadOption
from mmspec.core.files import Unwritten
from mmspec.evaluate.pages.films import write_film

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".mp4", ".gif")


def film_file(out: Path) -> tuple[Path, str | None]:
    """The file that frames go to: `out`, or a GIF of its name where MP4 cannot be written, with a sentence that says so.

    Refuses any other kind of file.
    """
    if out.suffix.lower() not in SUFFIXES:
        raise BadOption(f"--out: expected a file that ends in {' or '.join(SUFFIXES)}, got {str(out)!r}, rename it")
    if out.suffix.lower() == ".gif" or find_spec("imageio_ffmpeg") is not None:
        return out, None
    other = out.with_suffix(".gif")
    return other, (f"MP4 needs an ffmpeg with H.264 (libx264), which imageio-ffmpeg brings and which is not installed: "
                   f'writing {other} instead of {out}; pip install "mmspec[video]"')  # fmt: skip


def keep(frames: np.ndarray, out: Path, fps: float) -> None:
    """Writes a video, uint8 [N, H, W, 3], whole or not at all.

    Where `out` cannot be written it goes to the system's folder for temporary files, and the Unwritten that is raised says so.
    """
    try:
        write_film(frames, out, fps)
    except Unwritten as error:
        spare = Path(tempfile.gettempdir()) / f"{out.stem}-{os.getpid()}{out.suffix}"
        try:
            write_film(frames, spare, fps)
        except (OSError, ValueError):
            raise error from None
        error.args = (f"{error}; the {len(frames)} finished frames are kept in {spare}",)
        raise error from None

"""Frames as a file: MP4 by the ffmpeg that imageio-ffmpeg brings, GIF by Pillow."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.core.files import Unwritten, replacing

if TYPE_CHECKING:
    import numpy as np

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def write_film(frames: np.ndarray, out: Path, fps: float) -> None:
    """Writes a video, uint8 [N, H, W, 3], by its suffix.   Raises Unwritten, and ValueError where ffmpeg fails."""
    (_mp4 if out.suffix.lower() == ".mp4" else _gif)(frames, out, fps)


def _gif(frames: np.ndarray, out: Path, fps: float) -> None:
    from PIL import Image

    first, *more = (Image.fromarray(frame) for frame in frames)
    # players count hundredths of a second, and take less than two for ten
    with replacing(out) as path:
        first.save(path, save_all=True, append_images=more, duration=max(20, round(1000 / fps)), loop=0)


def _mp4(frames: np.ndarray, out: Path, fps: float) -> None:
    from imageio_ffmpeg import get_ffmpeg_exe

    _, rows, columns, _ = frames.shape
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{columns}x{rows}", "-r", f"{fps:g}", "-i", "-"]
    # players want chroma at half the size, so sides are made even
    made = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "16", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2",
            "-movflags", "+faststart"]  # fmt: skip
    with replacing(out) as path:
        # in a session of its own, so that Ctrl-C ends the drawing and not the file
        done = subprocess.run([get_ffmpeg_exe(), "-y", "-v", "error", *given, *made, str(path)], input=frames.tobytes(),
                              check=False, capture_output=True, start_new_session=True, restore_signals=False)  # fmt: skip
        if done.returncode:
            _refuse(out, done.stderr.decode(errors="replace"))


def _refuse(out: Path, said: str) -> None:
    for number in _FULL:
        if os.strerror(number) in said:
            raise Unwritten(out, os.strerror(number), number)
    last = " ".join((said.strip().splitlines() or ["nothing"])[-1].split())
    raise ValueError(f"--out: expected ffmpeg to write {str(out)!r} with libx264, got {last!r}, write a .gif")

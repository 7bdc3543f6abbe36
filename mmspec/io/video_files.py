"""Video files: frames as MP4 through ffmpeg, or as GIF; a file is complete or absent."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mmspec.io.files import WriteError, replacing

if TYPE_CHECKING:
    import numpy as np

VIDEO_SUFFIXES = (".mp4", ".gif")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_SHORTEST_GIF_FRAME = 20  # milliseconds; players show shorter frames for a tenth of a second


def has_mp4_writer() -> bool:
    """Return whether imageio-ffmpeg, which brings an ffmpeg with H.264, is installed."""
    return find_spec("imageio_ffmpeg") is not None


def write_video(frames: np.ndarray, out: Path, fps: float) -> None:
    """Write frames, uint8 [N, H, W, 3] with N above 0, to an .mp4 or .gif file."""
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != "uint8" or not len(frames):
        raise ValueError(
            f"frames: expected uint8 [N, H, W, 3] with N >= 1, got {frames.dtype} {list(frames.shape)}; convert them"
        )
    (_write_mp4 if _suffix_of(out) == ".mp4" else _write_gif)(frames, out, fps)


def _suffix_of(out: Path) -> str:
    suffix = out.suffix.lower()
    if suffix not in VIDEO_SUFFIXES:
        raise ValueError(
            f"--out: expected a file that ends in {' or '.join(VIDEO_SUFFIXES)}, got {str(out)!r}, rename it"
        )
    return suffix


def video_file(out: Path) -> tuple[Path, str | None]:
    """Return the file that frames are written to: `out`, or a GIF of its name and a notice where MP4 cannot be written."""
    if _suffix_of(out) == ".gif" or has_mp4_writer():
        return out, None
    other = out.with_suffix(".gif")
    return other, (
        f"MP4 needs an ffmpeg with H.264 (libx264), which imageio-ffmpeg brings and which is not installed: "
        f'writing {other} instead of {out}; pip install "mmspec[video]"'
    )


def save_video(frames: np.ndarray, out: Path, fps: float) -> None:
    """Write uint8 frames [N, H, W, 3] to a video file. Where `out` cannot be written, the error names the file in the
    system's temporary folder that holds the frames."""
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


def _write_gif(frames: np.ndarray, out: Path, fps: float) -> None:
    from PIL import Image

    first, *more = (Image.fromarray(frame) for frame in frames)
    milliseconds = max(_SHORTEST_GIF_FRAME, round(1000 / fps))
    with replacing(out) as path:
        first.save(path, save_all=True, append_images=more, duration=milliseconds, loop=0)


def _write_mp4(frames: np.ndarray, out: Path, fps: float) -> None:
    from imageio_ffmpeg import get_ffmpeg_exe

    _, rows, columns, _ = frames.shape
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{columns}x{rows}", "-r", f"{fps:g}", "-i", "-"]
    # players require chroma at half the size, so sides are padded to even lengths
    encoding = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "16"]
    layout = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-movflags", "+faststart"]
    with replacing(out) as path:
        command = [get_ffmpeg_exe(), "-y", "-v", "error", *source, *encoding, *layout, str(path)]
        # in a session of its own, so that Ctrl-C does not damage the file
        done = subprocess.run(
            command,
            input=frames.tobytes(),
            check=False,
            capture_output=True,
            start_new_session=True,
            restore_signals=False,
        )
        if done.returncode:
            _raise_ffmpeg_error(out, done.stderr.decode(errors="replace"))


def _raise_ffmpeg_error(out: Path, message: str) -> None:
    for number in _DISK_FULL:
        if os.strerror(number) in message:
            raise WriteError(out, os.strerror(number), number)
    last = " ".join((message.strip().splitlines() or ["nothing"])[-1].split())
    raise ValueError(f"--out: expected ffmpeg to write {str(out)!r} with libx264, got {last!r}, write a .gif")

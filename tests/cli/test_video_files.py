"""Files that `mmspec video` writes: as blocks come, through interrupts, full disks and missing encoders."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec.io import video_files
from mmspec.io.files import WriteError
from tests.cli.video_command import FRAMES, drawn, frames_of, invoked
from tests.evaluate.tiny_video import tiny_video_zoo
from tests.house.tree import ROOT
from tests.video.decoding.tiny import bright

FFMPEG = find_spec("imageio_ffmpeg") is not None
pytestmark = pytest.mark.usefixtures("tiny_video")


def test_finished_blocks_are_reported_and_written_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    whole = video_files.write_video
    monkeypatch.setattr(video_files, "write_video", lambda *given: whole(*given) or seen.append(frames_of("out.gif")))
    result = invoked("--stream", "--decoding", "sdvg", "--router", "strided:budget=2")
    assert result.exit_code == 0 and seen == [3, 7, 11, 15]
    told = [line.split(",")[0] for line in result.stdout.splitlines()[:-1]]
    assert told == [
        "block 1 of 4: drawn by the target",
        "block 2 of 4: draft accepted",
        "block 3 of 4: drawn by the target",
        "block 4 of 4: draft accepted",
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_finished_blocks_are_saved_on_interrupt(number: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupting(frames: torch.Tensor, prompt: str) -> torch.Tensor:
        signal.raise_signal(number)
        return bright(frames, prompt)

    monkeypatch.setitem(tiny_video_zoo(), "video/reward", interrupting)
    result = invoked("--decoding", "sdvg", "--threshold", "0")
    assert result.exit_code == code and "Stopped: 2 of 4 blocks are in out.gif\n" in result.stderr
    assert frames_of("out.gif") == 7


def test_finished_blocks_are_saved_when_a_reward_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def spoiled(frames: torch.Tensor, prompt: str) -> torch.Tensor:
        calls.append(1)
        return bright(frames, prompt) * (float("nan") if len(calls) == 2 else 1)

    monkeypatch.setitem(tiny_video_zoo(), "video/reward", spoiled)
    result = invoked("--decoding", "sdvg", "--threshold", "0")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 1 and "expected finite scores, got nan" in line
    assert line.endswith("the finished frames are in out.gif") and frames_of("out.gif") == 7
    assert json.loads(Path("out.json").read_text())["blocks"] == 2


def test_a_full_disk_reports_one_error_and_the_frames_are_saved_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = Image.Image.save

    def full(image: Image.Image, path: Path, **how: object) -> None:
        if Path(path).resolve().parent == tmp_path.resolve():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        whole(image, path, **how)

    (tmp_path / "spare").mkdir()
    monkeypatch.setattr(Image.Image, "save", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    result = invoked("--model", "video")
    (line,) = result.stderr.splitlines()
    spare = next((tmp_path / "spare").iterdir())
    assert result.exit_code == 1 and f"the {FRAMES} finished frames are kept in {spare}" in line.replace("  ", " ")
    assert "expected to write 'out.gif', got 'No space left on device'" in line and frames_of(str(spare)) == FRAMES
    assert not Path("out.gif").exists()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("limit", (1200, 2600))
@pytest.mark.parametrize("suffix", (".gif", ".mp4"))
def test_a_stream_that_cannot_write_reports_the_written_frames(limit: int, suffix: str, tmp_path: Path) -> None:
    """A limit of the system's own, in a process of its own."""
    if suffix == ".mp4" and not FFMPEG:
        pytest.skip("imageio-ffmpeg is not installed")
    code = (
        "import resource, signal, sys\n"
        "from mmspec.cli.video_blocks import save_blocks\n"
        "import numpy as np\n"
        "noise = np.random.default_rng(0).integers(0, 255, (9, 16, 16, 3), dtype=np.uint8)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "from pathlib import Path\n"
        "written, out = 0, Path(sys.argv[1])\n"
        "for block in range(1, 10):\n"
        "    written = save_blocks(noise[:block], out, 8, block, written)\n"
    )
    out = tmp_path / f"film{suffix}"
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and f"expected to write '{out}', got 'File too large'" in last
    if out.exists():
        blocks = int(last.split("the first ")[1].split(" blocks")[0])
        assert last.endswith(f"the first {blocks} blocks are in {out}") and out.stat().st_size <= limit
        assert suffix == ".mp4" or frames_of(str(out)) == blocks
    else:
        assert "are in" not in last
    assert [path.name for path in tmp_path.iterdir()] == ([out.name] if out.exists() else [])


def test_without_ffmpeg_a_gif_is_written_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_files, "has_mp4_writer", lambda: False)
    result = invoked("--model", "video", out="film.mp4")
    assert result.exit_code == 0 and frames_of("film.gif") == FRAMES and not Path("film.mp4").exists()
    assert result.stderr.startswith("MP4 needs an ffmpeg with H.264 (libx264)") and "mmspec[video]" in result.stderr
    assert json.loads(Path("out.json").read_text())["out"] == "film.gif"


@pytest.mark.skipif(not FFMPEG, reason="imageio-ffmpeg is not installed")
def test_an_mp4_holds_the_frames(tmp_path: Path) -> None:
    from imageio_ffmpeg import count_frames_and_secs, read_frames

    shades = np.repeat(np.arange(20, 240, 20, dtype=np.uint8), 33 * 64 * 3).reshape(11, 33, 64, 3)
    video_files.write_video(shades, tmp_path / "shades.mp4", 10)
    frames, seconds = count_frames_and_secs(tmp_path / "shades.mp4")
    assert frames == 11 and seconds == pytest.approx(1.1, abs=0.05)
    about, *read = read_frames(tmp_path / "shades.mp4")
    assert about["codec"] == "h264" and about["size"] == (64, 34)  # odd sides are made even
    means = [np.frombuffer(entry, np.uint8).reshape(34, 64, 3)[:32].mean() for entry in read]
    assert means == pytest.approx(list(range(20, 240, 20)), abs=4)
    assert (
        drawn("--model", "video", out="film.mp4")["out"] == "film.mp4"
        and count_frames_and_secs("film.mp4")[0] == FRAMES
    )


@pytest.mark.skipif(not FFMPEG, reason="imageio-ffmpeg is not installed")
def test_an_ffmpeg_that_fails_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "ffmpeg"
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", lambda: str(script))
    for said, kind, told in (
        (
            "libx264 is unknown",
            ValueError,
            "expected ffmpeg to write '.*film.mp4' with libx264, got 'libx264 is unknown'",
        ),
        (
            "av_write: No space left on device",
            WriteError,
            "expected to write '.*film.mp4', got 'No space left on device'",
        ),
    ):
        script.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{said}' >&2\nexit 1\n")
        script.chmod(0o755)
        with pytest.raises(kind, match=told):
            video_files.write_video(np.zeros((2, 8, 8, 3), np.uint8), tmp_path / "film.mp4", 10)
        assert not list(tmp_path.glob("*.mp4"))

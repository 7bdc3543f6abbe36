"""The folder layouts that GenEval, DPG-Bench and VBench read, one cell of a run each."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from mmspec.core.files import replacing, write_text_atomic
from mmspec.evaluate.pages.films import write_film
from mmspec.evaluate.sweep.media import found

FPS = 8.0  # of films, whose frames VBench counts rather than times
_FORBIDDEN = "/\\\0"


def geneval(run: Path, samples: Sequence[dict], folder: Path) -> None:
    """A folder per prompt, numbered in the set's order: `metadata.jsonl` with the record that the prompt came from,
    which names the objects to look for, and `samples/0000.png`..."""
    for number, part in enumerate(_by_prompt(samples)):
        inside = folder / f"{number:05d}"
        (inside / "samples").mkdir(parents=True, exist_ok=True)
        told = part[0]["asked"]["source"] or {"prompt": part[0]["asked"]["text"]}
        write_text_atomic(inside / "metadata.jsonl", json.dumps(told, ensure_ascii=False) + "\n")
        for place, one in enumerate(part):
            with replacing(inside / "samples" / f"{place:04d}.png") as temporary:
                found(run, one["shown"], "picture").save(temporary)


def dpg(run: Path, samples: Sequence[dict], folder: Path) -> None:
    """One picture per prompt, named as the prompt is in the set: its samples as tiles, row after row, two by two of
    four. The judge is told their number and side.

    Raises ValueError for a number of samples that fills no square.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in _by_prompt(samples):
        side = math.isqrt(len(part))
        if side * side != len(part):
            raise ValueError(
                f"--export dpg: expected 1, 4 or 9 samples of every prompt, got {len(part)}, run with --samples 4"
            )
        tiles = [found(run, one["shown"], "picture") for one in part]
        width, height = tiles[0].size
        whole = Image.new("RGB", (side * width, side * height))
        for place, tile in enumerate(tiles):
            whole.paste(tile, (place % side * width, place // side * height))
        with replacing(folder / f"{_name(part[0]['prompt'])}.png") as temporary:
            whole.save(temporary)


def vbench(run: Path, samples: Sequence[dict], folder: Path) -> None:
    """`PROMPT-0.mp4`, `PROMPT-1.mp4`..., as GIF where imageio-ffmpeg is not installed; VBench reads both."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "mp4" if find_spec("imageio_ffmpeg") is not None else "gif"
    for part in _by_prompt(samples):
        for place, one in enumerate(part):
            frames = found(run, one["shown"], "film")
            write_film(frames, folder / f"{_name(one['asked']['text'])}-{place}.{kind}", FPS)


def _by_prompt(samples: Sequence[dict]) -> list[list[dict]]:
    """Samples of every prompt, in the set's order."""
    grouped: dict[str, list[dict]] = {}
    for one in samples:
        grouped.setdefault(one["prompt"], []).append(one)
    return list(grouped.values())


def _name(text: str) -> str:
    """A text as a file's name, as it stands.   Raises ValueError for one that no file can have."""
    if not text.strip(".") or any(one in text for one in _FORBIDDEN) or len(text.encode()) > 240:
        raise ValueError(
            f"--export: expected prompts that can be names of files, got {text[:60]!r}, shorten or rename it"
        )
    return text

"""Outputs of a sweep in the folder layouts that GenEval, DPG-Bench and VBench read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from einops import rearrange
from PIL import Image

from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.engine.media import load_output
from mmspec.evaluate.engine.shards import Records
from mmspec.io.files import replacing, write_text_atomic
from mmspec.io.video_files import has_mp4_writer, write_video

FPS = 8.0  # of films, whose frames VBench counts rather than times
_FORBIDDEN_IN_NAMES = "/\\\0"


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
                load_output(run, one["shown"], "picture").save(temporary)


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
        tiles = np.stack([np.asarray(load_output(run, one["shown"], "picture")) for one in part])
        whole = Image.fromarray(rearrange(tiles, "(row column) h w c -> (row h) (column w) c", row=side))
        with replacing(folder / f"{_file_name(part[0]['prompt'])}.png") as temporary:
            whole.save(temporary)


def vbench(run: Path, samples: Sequence[dict], folder: Path) -> None:
    """`PROMPT-0.mp4`, `PROMPT-1.mp4`..., as GIF where imageio-ffmpeg is not installed; VBench reads both."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "mp4" if has_mp4_writer() else "gif"
    for part in _by_prompt(samples):
        for place, one in enumerate(part):
            frames = load_output(run, one["shown"], "film")
            write_video(frames, folder / f"{_file_name(one['asked']['text'])}-{place}.{kind}", FPS)


def _by_prompt(samples: Sequence[dict]) -> list[list[dict]]:
    """Samples of every prompt, in the set's order."""
    grouped: dict[str, list[dict]] = {}
    for one in samples:
        grouped.setdefault(one["prompt"], []).append(one)
    return list(grouped.values())


def _file_name(text: str) -> str:
    """A text as a file's name, as it stands.   Raises ValueError for one that no file can have."""
    if not text.strip(".") or any(one in text for one in _FORBIDDEN_IN_NAMES) or len(text.encode()) > 240:
        raise ValueError(
            f"--export: expected prompts that can be names of files, got {text[:60]!r}, shorten or rename it"
        )
    return text


# name -> (what it is of, how one cell is written)
LAYOUTS: dict[str, tuple[str, Callable]] = {
    "geneval": ("picture", geneval),
    "dpg": ("picture", dpg),
    "vbench": ("film", vbench),
}


def export_run(kind: str, found: Records, folder: Path) -> str:
    """Writes a folder per cell; a sentence on what was written.

    kind: "geneval", "dpg" or "vbench"; the judges themselves are other people's and are run by the user.
    Raises ValueError for another kind, and for a run that has made nothing of what it reads.
    """
    check_choice("--export", kind, LAYOUTS)
    shows, write = LAYOUTS[kind]
    cells: dict[str, list[dict]] = {}
    for one in found.samples.values():
        if one["failed"] is None and one["shown"] is not None and one["shows"] == shows:
            cells.setdefault(one["cell"], []).append(one)
    if not cells:
        raise ValueError(
            f"--export: expected a run that has made a {shows}, got none in {str(found.folder)!r}, run a model of them"
        )
    for cell, samples in cells.items():
        ordered = sorted(samples, key=lambda one: (one["order"], one["sample"]))
        write(found.folder, ordered, folder / f"{ordered[0]['of']['model'].replace('/', '-')}-{cell}")
    count = sum(map(len, cells.values()))
    return f"{folder}: {count} samples of {len(cells)} cells as {kind} reads them"

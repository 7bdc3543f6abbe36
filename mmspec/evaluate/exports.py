"""Outputs of a sweep in the folder layouts of GenEval, DPG-Bench and VBench."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from einops import rearrange
from PIL import Image

from mmspec.evaluate.base.media import load_output
from mmspec.evaluate.engine.shards import Records
from mmspec.io.files import replacing, write_text_atomic
from mmspec.io.video_files import has_mp4_writer, write_video
from mmspec.run.decoding_options import check_choice

FPS = 8.0  # frame rate of videos; VBench counts frames and ignores times
_FORBIDDEN_IN_NAMES = "/\\\0"


def geneval(run: Path, samples: Sequence[dict], folder: Path) -> None:
    """Write a folder per prompt, numbered in the set's order, with `metadata.jsonl` and `samples/0000.png`... The
    metadata is the record of the prompt, which names the objects to look for."""
    for number, part in enumerate(_by_prompt(samples)):
        inside = folder / f"{number:05d}"
        (inside / "samples").mkdir(parents=True, exist_ok=True)
        metadata = part[0]["asked"]["source"] or {"prompt": part[0]["asked"]["text"]}
        write_text_atomic(inside / "metadata.jsonl", json.dumps(metadata, ensure_ascii=False) + "\n")
        for place, entry in enumerate(part):
            with replacing(inside / "samples" / f"{place:04d}.png") as temporary:
                load_output(run, entry["shown"], "picture").save(temporary)


def dpg(run: Path, samples: Sequence[dict], folder: Path) -> None:
    """Write a picture per prompt, named after the prompt: its samples, a square number, as tiles row by row.
    DPG-Bench's judge needs their number and side."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in _by_prompt(samples):
        side = math.isqrt(len(part))
        if side * side != len(part):
            raise ValueError(
                f"--export dpg: expected 1, 4 or 9 samples of every prompt, got {len(part)}, run with --samples 4"
            )
        tiles = np.stack([np.asarray(load_output(run, entry["shown"], "picture")) for entry in part])
        whole = Image.fromarray(rearrange(tiles, "(row column) h w c -> (row h) (column w) c", row=side))
        with replacing(folder / f"{_file_name(part[0]['prompt'])}.png") as temporary:
            whole.save(temporary)


def vbench(run: Path, samples: Sequence[dict], folder: Path) -> None:
    """Write `PROMPT-0.mp4`, `PROMPT-1.mp4`..., or GIF without imageio-ffmpeg; VBench reads both."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "mp4" if has_mp4_writer() else "gif"
    for part in _by_prompt(samples):
        for place, entry in enumerate(part):
            frames = load_output(run, entry["shown"], "film")
            write_video(frames, folder / f"{_file_name(entry['asked']['text'])}-{place}.{kind}", FPS)


def _by_prompt(samples: Sequence[dict]) -> list[list[dict]]:
    """Return the samples of every prompt, in the set's order."""
    grouped: dict[str, list[dict]] = {}
    for sample in samples:
        grouped.setdefault(sample["prompt"], []).append(sample)
    return list(grouped.values())


def _file_name(text: str) -> str:
    """Return a text as the name of a file, unchanged, or refuse it."""
    if not text.strip(".") or any(name in text for name in _FORBIDDEN_IN_NAMES) or len(text.encode()) > 240:
        raise ValueError(
            f"--export: expected prompts that can be names of files, got {text[:60]!r}, shorten or rename it"
        )
    return text


# name -> (kind of output, function that writes a cell)
LAYOUTS: dict[str, tuple[str, Callable]] = {
    "geneval": ("picture", geneval),
    "dpg": ("picture", dpg),
    "vbench": ("film", vbench),
}


def export_run(kind: str, records: Records, folder: Path) -> str:
    """Write a folder per cell for "geneval", "dpg" or "vbench" and return a sentence on the result. The judges
    themselves are third-party programs that the user runs."""
    check_choice("--export", kind, LAYOUTS)
    shows, write = LAYOUTS[kind]
    cells: dict[str, list[dict]] = {}
    for sample in records.samples.values():
        if sample["failed"] is None and sample["shown"] is not None and sample["shows"] == shows:
            cells.setdefault(sample["cell"], []).append(sample)
    if not cells:
        raise ValueError(
            f"--export: expected a run that has made a {shows}, got none in {str(records.folder)!r}, run a model of them"
        )
    for cell, samples in cells.items():
        ordered = sorted(samples, key=lambda sample: (sample["order"], sample["sample"]))
        write(records.folder, ordered, folder / f"{ordered[0]['of']['model'].replace('/', '-')}-{cell}")
    count = sum(map(len, cells.values()))
    return f"{folder}: {count} samples of {len(cells)} cells as {kind} reads them"

"""Outputs of a run as files in its folder: pictures as PNG, videos as a PNG of their frames stacked vertically."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
from einops import rearrange
from PIL import Image

from mmspec.io.files import replacing
from mmspec.io.images import open_image

Shows = Literal["text", "picture", "film"]
FOLDER = "media"
LARGEST = 1 << 28  # bytes and pixels of one file; the limits of the image gate do not apply to a run's own output


def run_folder(path: str | Path) -> Path:
    """Return a run's folder. A path with ".." is refused, since its name does not show where it lies."""
    path = Path(path)
    if ".." in path.parts:
        raise ValueError(f"RUN: expected a folder without '..' in its path, got {str(path)!r}, name it directly")
    return path


def inside(folder: Path, name: str) -> Path:
    """Return the file that a record names, which must lie inside the run's folder, links resolved."""
    file = folder / name
    climbs = Path(name).is_absolute() or ".." in Path(name).parts
    if climbs or not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"{folder}: expected records that name files inside the run's folder, got {name!r}; the run was changed by "
            "hand, use another"
        )
    return file


def store_output(folder: Path, key: str, output: Any, shows: Shows) -> dict[str, Any]:
    """Store a text, a picture, or a video uint8 [F, H, W, 3], and return the entry of its record; the record itself
    holds a text."""
    if shows == "text":
        return {"text": output}
    array = np.asarray(output.convert("RGB") if shows == "picture" else output)
    frames = 1 if shows == "picture" else len(array)
    picture = Image.fromarray(array if shows == "picture" else rearrange(array, "f h w c -> (f h) w c"))
    cell, _, rest = key.partition("/")
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    name = Path(FOLDER) / cell / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', rest)[:60]}-{digest}.png"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder / name) as temporary:
        picture.save(temporary)
    return {"file": name.as_posix(), "frames": frames, "pixels": _digest(array)}


def load_output(folder: Path, shown: dict[str, Any], shows: Shows) -> Any:
    """Load an output of `store_output`; a file that is missing, damaged or outside the run's folder is a ValueError."""
    if shows == "text":
        return shown["text"]
    file = inside(folder, shown["file"])
    picture = open_image(file, max_pixels=LARGEST, max_bytes=LARGEST)
    array = np.asarray(picture)
    if _digest(array) != shown["pixels"] or len(array) % shown["frames"]:
        raise ValueError(
            f"{file}: expected the {shows} that its record describes, got another; move the run's shards away"
        )
    return picture if shows == "picture" else rearrange(array, "(f h) w c -> f h w c", f=shown["frames"])


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:32]

"""What a run has made, as files inside its folder: pictures as PNG, films as a PNG of their frames one below another."""

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
LARGEST = 1 << 28  # bytes and pixels of one file; what a run has made itself is not held to the gate's limits


def run_folder(path: str | Path) -> Path:
    """A run's folder.   Raises ValueError for a path that climbs with "..": what lies there cannot be told from its name."""
    path = Path(path)
    if ".." in path.parts:
        raise ValueError(f"RUN: expected a folder without '..' in its path, got {str(path)!r}, name it directly")
    return path


def inside(folder: Path, name: str) -> Path:
    """The file that a record names.   Raises ValueError for one that is not inside the run's folder, links followed."""
    file = folder / name
    climbs = Path(name).is_absolute() or ".." in Path(name).parts
    if climbs or not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"{folder}: expected records that name files inside the run's folder, got {name!r}; the run was changed by "
            "hand, use another"
        )
    return file


def store_output(folder: Path, key: str, made: Any, shows: Shows) -> dict[str, Any]:
    """Keeps what a request has made; the entry of its record that says where: a text is in the record itself."""
    if shows == "text":
        return {"text": made}
    array = np.asarray(made.convert("RGB") if shows == "picture" else made)
    frames = 1 if shows == "picture" else len(array)
    # the frames of a film one below another
    picture = Image.fromarray(array if shows == "picture" else rearrange(array, "f h w c -> (f h) w c"))
    cell, _, rest = key.partition("/")
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    name = Path(FOLDER) / cell / f"{re.sub(r'[^A-Za-z0-9_-]+', '-', rest)[:60]}-{digest}.png"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    with replacing(folder / name) as temporary:
        picture.save(temporary)
    return {"file": name.as_posix(), "frames": frames, "pixels": _digest(array)}


def load_output(folder: Path, shown: dict[str, Any], shows: Shows) -> Any:
    """What `store_output` kept: a text, a picture, or a film uint8 [F, H, W, 3].

    Raises ValueError for a file that is missing, damaged or outside the run's folder.
    """
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

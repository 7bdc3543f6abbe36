"""Fixed sets of tensors in files of a few hundred: made once, and kept for whoever trains on the set next."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.core.files import replacing
from mmspec.core.readers import open_tensors

_BY = "autoencoder"
Made = dict[str, Tensor]


def fingerprint(model: nn.Module, settings: object) -> str:
    """Of weights and settings, by which what another autoencoder made is told."""
    found = sha256(repr(settings).encode())
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def kept(
    folder: Path, stem: str, by: str, count: int, make: Callable[[int, int], Made], *, chunk: int = 512, batch: int = 64,
    on_made: Callable[[int], None] = lambda done: None,
) -> Made:  # fmt: skip
    """Tensors [count, ...] of a set, in files of `chunk` members; those of this autoencoder that are there already are kept.

    by: `fingerprint` of the autoencoder.   make(first, size): the members from the index `first` on, at most
    `batch` at a time.   on_made: is told how many members are at hand now, file by file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for first in range(0, count, chunk):
        size = min(chunk, count - first)
        path = folder / f"{stem}_{first:06d}.safetensors"
        part = _read(path, by, size)
        if part is None:
            part = _joined([make(first + at, min(batch, size - at)) for at in range(0, size, batch)])
            with replacing(path) as partial:
                save_file(part, partial, {_BY: by})
        parts.append(part)
        on_made(size)
    return _joined(parts)


def _joined(parts: list[Made]) -> Made:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _read(path: Path, by: str, size: int) -> Made | None:
    """What a file holds; None where it is missing, of another autoencoder, or of another number of members."""
    if not path.exists():
        return None
    with open_tensors(path) as stored:
        if (stored.metadata() or {}).get(_BY) != by:
            return None
        found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  the file is no mapping
    return found if found and all(len(value) == size for value in found.values()) else None

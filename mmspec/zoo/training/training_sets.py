"""Fixed training sets, generated once in files of a few hundred members, and latents of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.io.files import replacing
from mmspec.io.readers import open_tensors
from mmspec.zoo.training.loop import progress_bars


def batch_members(count: int, size: int, turn: int) -> list[int]:
    """Return the `size` members of a turn, of `count` members; every epoch has another order."""
    epoch, place = divmod(turn, max(count // size, 1))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return order[place * size : (place + 1) * size].tolist()


_BY = "autoencoder"
Tensors = dict[str, Tensor]


def fingerprint(model: nn.Module, settings: object) -> str:
    """Return a digest of weights and settings, which identifies the model of a cached set."""
    digest = sha256(repr(settings).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def cached_set(
    title: str,
    folder: Path,
    stem: str,
    mark: str,
    count: int,
    make: Callable[[int, int], Tensors],
    *,
    chunk: int,
    batch: int = 64,
) -> Tensors:
    """Return tensors [count, ...] of a set, cached in `folder/STEM...` files of `chunk` members, from (first index,
    size) -> tensors, for at most `batch` members a call. Files with another `mark` (`fingerprint`) are generated again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    with progress_bars() as progress:
        bar = progress.add_task(title, total=count, note="")
        for first in range(0, count, chunk):
            size = min(chunk, count - first)
            path = folder / f"{stem}_{first:06d}.safetensors"
            part = _read_part(path, mark, size)
            if part is None:
                part = _joined([make(first + at, min(batch, size - at)) for at in range(0, size, batch)])
                with replacing(path) as partial:
                    save_file(part, partial, {_BY: mark})
            parts.append(part)
            progress.update(bar, advance=size)
    return _joined(parts)


def _joined(parts: list[Tensors]) -> Tensors:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _read_part(path: Path, by: str, size: int) -> Tensors | None:
    """Return None where the file is missing, has another mark, or another number of members."""
    if not path.exists():
        return None
    with open_tensors(path) as stored:
        if (stored.metadata() or {}).get(_BY) != by:
            return None
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    return tensors if tensors and all(len(value) == size for value in tensors.values()) else None


@dataclass(frozen=True, slots=True)
class ImageLatents:
    """The posteriors of N pictures as scaled tokens."""

    mean: Tensor  # float16 [N, L, d]
    std: Tensor  # float16 [N, L, d]

    def __len__(self) -> int:
        return len(self.mean)

    def batch(self, step: int, size: int) -> tuple[Tensor, Tensor]:
        """Return pictures int64 [size] and tokens float32 [size, L, d], sampled from the posteriors: a pure function of
        the step."""
        members = torch.tensor(batch_members(len(self), size, step))
        noise = torch.randn(len(members), *self.mean.shape[1:], generator=torch.Generator().manual_seed(step))
        return members, self.mean[members].float() + self.std[members].float() * noise

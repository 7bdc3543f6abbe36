"""Files of encoded pictures: the latents of a fixed set, made once for all that is trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.core.files import replacing
from mmspec.core.readers import open_tensors
from mmspec.imagegen.continuous.mar.patches import patchify

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

CHUNK, BATCH = 512, 64
Pixels = Callable[[int, int], Tensor]
_BY = "autoencoder"


@dataclass(frozen=True, slots=True)
class Latents:
    """The posteriors of N pictures as tokens, scaled. mean, std: float16 [N, L, d]."""

    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        return len(self.mean)

    def batch(self, step: int, size: int) -> tuple[Tensor, Tensor]:
        """Which pictures a training step takes, int64 [size], and their tokens float32 [size, L, d], drawn from the
        posteriors; a pure function of the step: every epoch in an order of its own."""
        epoch, place = divmod(step, max(len(self) // size, 1))
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(epoch))
        taken = order[place * size : (place + 1) * size]
        noise = torch.randn(len(taken), *self.mean.shape[1:], generator=torch.Generator().manual_seed(step))
        return taken, self.mean[taken].float() + self.std[taken].float() * noise


def fingerprint(vae: AutoencoderKL) -> str:
    """Of weights and scale, by which latents of another autoencoder are told."""
    made = sha256(repr(float(vae.config.scaling_factor)).encode())
    for name, value in sorted(vae.state_dict().items()):
        made.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    return made.hexdigest()[:16]


@torch.no_grad()
def encoded(
    vae: AutoencoderKL, folder: Path, pixels: Pixels, count: int, on_pictures: Callable[[int], None] = lambda done: None
) -> Latents:
    """Latents of `count` pictures, in files of CHUNK; those of this autoencoder that are there already are kept.

    pixels(first, count): float [count, 3, H, W] in -1..1, the pictures from the index `first` on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark, parts = fingerprint(vae), []
    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first)
        path = folder / f"latents_{first:06d}.safetensors"
        part = _read(path, mark, size)
        if part is None:
            made = [_encode(vae, pixels(first + at, min(BATCH, size - at))) for at in range(0, size, BATCH)]
            part = Latents(*(torch.cat(each) for each in zip(*made, strict=True)))
            with replacing(path) as partial:
                save_file({"mean": part.mean, "std": part.std}, partial, {_BY: mark})
        parts.append(part)
        on_pictures(size)
    return _joined(parts)


def _joined(parts: Sequence[Latents]) -> Latents:
    return Latents(torch.cat([one.mean for one in parts]), torch.cat([one.std for one in parts]))


def _read(path: Path, mark: str, size: int) -> Latents | None:
    """What a file holds; None where it is missing, of another autoencoder, or of another number of pictures."""
    if not path.exists():
        return None
    with open_tensors(path) as stored:
        if (stored.metadata() or {}).get(_BY) != mark or sorted(stored.keys()) != ["mean", "std"]:
            return None
        found = Latents(stored.get_tensor("mean"), stored.get_tensor("std"))
    return found if len(found) == size else None


def _encode(vae: AutoencoderKL, pixels: Tensor) -> tuple[Tensor, Tensor]:
    law = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist
    scale = vae.config.scaling_factor
    return tuple(patchify(x.float() * scale, 1).half().cpu().contiguous() for x in (law.mean, law.std))

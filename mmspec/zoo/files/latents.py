"""Files of encoded pictures: the latents of a fixed set, made once for all that is trained on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.imagegen.continuous.mar.patches import patchify

from .fixed_sets import fingerprint, kept

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

CHUNK, BATCH = 512, 64
Pixels = Callable[[int, int], Tensor]


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


@torch.no_grad()
def encoded(
    vae: AutoencoderKL, folder: Path, pixels: Pixels, count: int, on_pictures: Callable[[int], None] = lambda done: None
) -> Latents:
    """Latents of `count` pictures, in files of CHUNK; those of this autoencoder that are there already are kept.

    pixels(first, count): float [count, 3, H, W] in -1..1, the pictures from the index `first` on.
    """

    def make(first: int, size: int) -> dict[str, Tensor]:
        return dict(zip(("mean", "std"), _encode(vae, pixels(first, size)), strict=True))

    mark = fingerprint(vae, float(vae.config.scaling_factor))
    return Latents(**kept(folder, "latents", mark, count, make, chunk=CHUNK, batch=BATCH, on_made=on_pictures))


def _encode(vae: AutoencoderKL, pixels: Tensor) -> tuple[Tensor, Tensor]:
    law = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist
    scale = vae.config.scaling_factor
    return tuple(patchify(x.float() * scale, 1).half().cpu().contiguous() for x in (law.mean, law.std))

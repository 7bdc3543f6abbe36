"""What latents mean: their channels, their grid in space and time, and how they are normalised."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan


@dataclass(frozen=True, slots=True)
class LatentLayout:
    """Two models may share latents where their layouts are equal.

    channels: of a latent.   stride: pixels a cell and side.   frames: pixel frames a latent frame stands for; the first
    latent frame of a video stands for one.   mean, std: of the autoencoder's own latents, per channel; models are given
    (latent - mean) / std.
    """

    channels: int
    stride: int
    frames: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"latents_mean, latents_std: expected {self.channels} numbers each, one a channel, got "
                             f"{len(self.mean)} and {len(self.std)}; correct the config of the autoencoder")  # fmt: skip
        if not all(value > 0 for value in self.std):
            raise ValueError(f"latents_std: expected numbers above 0, got {min(self.std)}; correct the config")

    @classmethod
    def of_wan(cls, vae: AutoencoderKLWan) -> LatentLayout:
        """Of diffusers' model. Strides follow from its levels: the fields of its config that name them are only told."""
        made = vae.config
        steps = len(made.dim_mult) - 1
        return cls(
            made.z_dim,
            2**steps * (made.patch_size or 1),
            2 ** sum(map(bool, made.temperal_downsample[:steps])),
            tuple(map(float, made.latents_mean)),
            tuple(map(float, made.latents_std)),
        )

    def check(self, other: LatentLayout, whose: str) -> None:
        """Raises ValueError where `other`, the layout of `whose` latents, is not this one."""
        wrong = [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]
        if wrong:
            told = ", ".join(f"{name} {getattr(other, name)} instead of {getattr(self, name)}" for name in wrong)
            raise ValueError(f"{whose}: expected latents of the same autoencoder, got {told}; use models of one family")

    def normalised(self, latents: Tensor) -> Tensor:
        """The autoencoder's own latents as models take them: float32 [B, C, F, h, w]."""
        mean, std = self._statistics(latents.device)
        return (latents.float() - mean) / std

    def restored(self, latents: Tensor) -> Tensor:
        """Latents of models as the autoencoder's own: float32 [B, C, F, h, w]."""
        mean, std = self._statistics(latents.device)
        return latents.float() * std + mean

    def _statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        both = torch.tensor([self.mean, self.std], dtype=torch.float32, device=device)[:, None, :, None, None, None]
        return both[0], both[1]

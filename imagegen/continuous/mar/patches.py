"""Latents and tokens: a token packs a patch of the latent, channel first."""

from __future__ import annotations

from torch import Tensor


def patchify(latents: Tensor, patch: int) -> Tensor:
    """[B, (h / p)(w / p), c p p] of latents [B, c, h, w], in raster order."""
    rows, channels, height, width = latents.shape
    cells = latents.reshape(rows, channels, height // patch, patch, width // patch, patch)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(rows, -1, channels * patch * patch)


def unpatchify(tokens: Tensor, patch: int, grid: int) -> Tensor:
    """[B, c, grid p, grid p] of tokens [B, grid grid, c p p]."""
    cells = tokens.reshape(len(tokens), grid, grid, -1, patch, patch)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(len(tokens), -1, grid * patch, grid * patch)

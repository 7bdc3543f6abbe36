"""Rotary positions of time, rows and columns, from any frame on."""

from __future__ import annotations

import torch
from torch import Tensor

_THETA = 10000.0


def rotary_table(head_dim: int, start: int, grid: tuple[int, int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin) float32 [F * h * w, head_dim / 2] of a grid of frames, rows and columns, whose first frame is number `start`.

    Pairs belong to time, then rows, then columns. Angles are float64, as the published tables are; no frame is too late.
    """
    side = 2 * (head_dim // 6)
    frames, rows, columns = grid
    angles = [
        _angles(start, frames, head_dim - 2 * side, device)[:, None, None].expand(-1, rows, columns, -1),
        _angles(0, rows, side, device)[None, :, None].expand(frames, -1, columns, -1),
        _angles(0, columns, side, device)[None, None].expand(frames, rows, -1, -1),
    ]
    angle = torch.cat(angles, -1).flatten(0, 2)
    return angle.cos().float(), angle.sin().float()


def _angles(start: int, count: int, dim: int, device: torch.device) -> Tensor:
    position = torch.arange(start, start + count, dtype=torch.float64, device=device)
    frequency = _THETA ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
    return position[:, None] * frequency


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """x [B, S, H, head_dim] with each pair of neighbouring channels turned by the angle of its token, in float32."""
    cos, sin = (part[:, None] for part in table)  # [S, 1, head_dim / 2]
    one, other = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((one * cos - other * sin, one * sin + other * cos), -1).flatten(-2).to(x.dtype)

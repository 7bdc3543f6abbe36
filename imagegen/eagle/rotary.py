"""Rotary positions of the drafter's slots: the cells of the values they embed."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.llamagen.rope import frequencies


@lru_cache(maxsize=16)
def grid_rotary(geometry: Geometry, dim: int, theta: float, beyond: int, device: torch.device) -> Tensor:
    """cos and signed sin of every value's cell, float32 [total + beyond, 2, dim], for heads in half-split layout.

    With m = dim / 4 frequencies f_j = theta ** (-j / m), pair j < m turns by row * f_j and pair m + j by column * f_j, as
    LlamaGen's do. Values without a cell and the `beyond` rows behind the last one are ZERO: such slots are seen with logit 0.
    float32 whatever the weights are: heads are turned in it and then rounded, as LlamaGen's are.
    """
    cell = torch.tensor([(r, c) for _, r, c in geometry.cells], dtype=torch.float32)
    angle = (cell[..., None] * frequencies(dim, theta)).flatten(1)  # [total, dim / 2]: rows first
    cos, sin = angle.cos(), angle.sin()
    table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)
    table[cell[:, 0] < 0] = 0
    return torch.cat([table, table.new_zeros(beyond, 2, dim)]).to(device)

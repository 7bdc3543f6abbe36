"""Rotary positions of the drafter's slots: the cells of the values they embed."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.imagegen.geometry import Geometry
from mmspec.imagegen.llamagen.rope import turns


@lru_cache(maxsize=16)
def grid_rotary(
    geometry: Geometry, dim: int, theta: float, beyond: int, device: torch.device, time_pairs: int = 0
) -> Tensor:  # fmt: skip
    """cos and signed sin of every value's cell, float32 [total + beyond, 2, dim], for heads in half-split layout.

    Pairs turn with frame, row and column as LlamaGen's do, see `turns`. Values without a cell and the `beyond` rows behind
    the last one are ZERO: such slots are seen with logit 0. float32 whatever the weights are: heads are turned in it and
    then rounded, as LlamaGen's are.
    """
    cell = torch.tensor([place for _, *place in geometry.cells], dtype=torch.float32)
    angle = turns(cell, dim, theta, time_pairs)  # [total, dim / 2]
    cos, sin = angle.cos(), angle.sin()
    table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)
    table[cell[:, 0] < 0] = 0
    return torch.cat([table, table.new_zeros(beyond, 2, dim)]).to(device)

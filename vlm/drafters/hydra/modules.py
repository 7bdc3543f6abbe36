"""The first block of a Hydra head, whose input is wider than its output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Entry(nn.Module):
    """Px + c + SiLU(Wx + b) from [..., parts * H] to [..., H]: a residual block whose widths differ, so that the skip is
    linear too. W starts at 0 and P passes the first part on. One product makes both."""

    def __init__(self, parts: int, width: int):
        super().__init__()
        self.linear = nn.Linear(parts * width, 2 * width)  # rows of P, then of W
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:width, :width] = torch.eye(width)
            self.linear.bias[:width] = 0

    def forward(self, x: Tensor) -> Tensor:
        skip, inner = F.linear(x, self.linear.weight, self.linear.bias).chunk(2, -1)
        return skip + F.silu(inner)

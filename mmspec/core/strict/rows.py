"""Products and functions that give a row the same bits whatever stands beside it.

A matrix product adds up in an order that its library chooses by the number of rows: one row alone, five and thirty may all get
other bits. With a fixed number of rows the order is fixed too, and rows do not mix, so products are taken in blocks of as many
rows, the last one filled with zeros. On some processors that holds for widths in eights alone; models have such, and prove it.
Elementwise functions compute what fills no whole vector register by another formula, and threads cut long tensors anywhere:
here every element is part of a whole vector, in pieces that one thread computes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 8  # rows of a product of a decoding pass: a root and seven drafted values
PROMPT_BLOCK = 64
_VECTORS = 64  # elements of two vectors of bfloat16, which loops take at once
_PIECE = 32768  # elements that torch leaves to one thread


def in_blocks(product: Callable[[Tensor], Tensor], x: Tensor, rows: int) -> Tensor:
    """`product` of x [..., K] -> [..., N], always of `rows` rows [rows, K] at a time."""
    flat = x.reshape(-1, x.shape[-1])
    count = flat.shape[0]
    missing = -count % rows
    if missing:
        flat = torch.cat((flat, flat.new_zeros(missing, flat.shape[1])))
    made = [product(block) for block in flat.split(rows)]
    out = made[0] if len(made) == 1 else torch.cat(made)
    return out[:count].view(*x.shape[:-1], out.shape[-1])


def in_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function of x, in whole vectors."""
    flat = x.reshape(-1)
    count = flat.shape[0]
    missing = -count % _VECTORS
    if missing:
        flat = torch.cat((flat, flat.new_zeros(missing)))
    made = [function(piece) for piece in flat.split(_PIECE)]
    out = made[0] if len(made) == 1 else torch.cat(made)
    return out[:count].view(x.shape)

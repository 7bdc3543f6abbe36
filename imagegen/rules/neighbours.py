"""Which codes of a codebook lie nearest to each other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

ROWS = 512  # codes whose distances are in memory at a time


@torch.no_grad()
def neighbours(codebook: Tensor, k: int, normalise: bool = True) -> Tensor:
    """int64 [K, k], the k nearest other codes of every code by Euclidean distance, nearest first.

    codebook: float [K, d].   normalise: compare rows of unit length, as LlamaGen's decoder does; LANTERN's public table is
    made from the raw rows.   No code is its own neighbour.   Raises ValueError for another shape or k outside 1..K - 1.
    """
    if codebook.dim() != 2:
        raise ValueError(f"codebook: expected rows of codes [K, d], got shape {tuple(codebook.shape)}")
    if not 1 <= k < len(codebook):
        raise ValueError(f"k: expected 1 to {len(codebook) - 1} neighbours of {len(codebook)} codes, got {k}")
    code = codebook.double()  # so that close distances keep their order
    code = normalize(code, dim=-1) if normalise else code
    square, found = code.square().sum(-1), []
    for start in range(0, len(code), ROWS):
        part = code[start : start + ROWS]
        # |a - b|^2 without |a|^2, which all of a row share
        distance = torch.addmm(square[None], part, code.T, alpha=-2)
        row = torch.arange(len(part), device=code.device)
        distance[row, start + row] = torch.inf
        found.append(distance.topk(k, largest=False).indices)
    return torch.cat(found)

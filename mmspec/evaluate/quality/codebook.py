"""How much of a codebook is used."""

from __future__ import annotations

import numpy as np


def usage(codes: np.ndarray, size: int) -> tuple[int, float]:
    """Of codes int [N, n] out of `size`: how many differ, and the perplexity of their frequencies."""
    share = np.bincount(codes.ravel(), minlength=size) / codes.size
    there = share[share > 0]
    return len(there), float(np.exp(-(there * np.log(there)).sum()))

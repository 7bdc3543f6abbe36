"""How kernels are launched, and what they are told of laws."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.law import LogLaw

TILE = 4096  # values of a vocabulary that one program looks at together
SPAN = 16384  # values that one program works through; a row of an image vocabulary is one program's


_launched = 0


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Runs a kernel over a grid; nothing at all over an empty one."""
    global _launched
    if all(grid):
        _launched += 1
        kernel[grid](*arguments, **constants)


def launched() -> int:
    """How many kernels of ours this process has launched; benches look at differences."""
    return _launched


def wide(dtype: torch.dtype) -> tl.dtype:
    """What sums over a vocabulary are kept in: float64 for float64, float32 for all else."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def tile_of(size: int, most: int = TILE) -> int:
    """A power of two that covers `size`, at most `most`, at least 16."""
    return max(16, min(triton.next_power_of_2(size), most))


def law_arguments(law: Tensor | LogLaw) -> tuple[tuple, dict[str, bool]]:
    """(pointers and strides of a law [B, M, V], (is it scores, are its rows picked by an index)) as kernels take them."""
    if isinstance(law, LogLaw):
        scores = law.scores
        row = scores if law.row is None else law.row
        return (scores, law.stats, row, *scores.stride()[:2], scores.shape[1]), (True, law.row is not None)
    return (law, law, law, *law.stride()[:2], law.shape[1]), (False, False)

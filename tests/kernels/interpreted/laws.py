"""Scores with everything in them that ops must survive, and the sizes they are tried on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.kernels.law import dense_reference, law_rows
from mmspec.kernels.log_law import LogLaw

# V, N, dtype: every size and every dtype; few nodes beside a wide vocabulary, as a program takes milliseconds
SIZES = [
    (1, 2, torch.float32),
    (7, 31, torch.bfloat16),
    (127, 2, torch.float64),
    (1013, 2, torch.bfloat16),
    (16384, 1, torch.float32),
    (128256, 1, torch.bfloat16),
]
IDS = [f"V{size}-N{nodes}-{str(dtype).removeprefix('torch.')}" for size, nodes, dtype in SIZES]
# the widest vocabulary takes the interpreter a fifth of the time of all of these tests; 127 and 16384 lie around 1013
MARKS = [[pytest.mark.whole] if size in (1013, 128256) else [] for size, _, _ in SIZES]
CASES = [pytest.param(*case, id=name, marks=marks) for case, name, marks in zip(SIZES, IDS, MARKS, strict=True)]
over_sizes = pytest.mark.parametrize(("size", "nodes", "dtype"), CASES)


def scores(
    size: int, nodes: int, dtype: torch.dtype, seed: int, *, batch: int | None = None, spoiled: bool = False
) -> Tensor:
    """[B, N, V] of a few units' spread with tokens of probability 0; B is 2, and 1 with many nodes.

    spoiled: in the last row of the batch one node is NaN somewhere, one is -Inf throughout and one holds +Inf, as far as there
    are nodes.
    """
    batch = (2 if nodes <= 3 else 1) if batch is None else batch
    generator = torch.Generator().manual_seed(seed)
    made = (2 * torch.randn(batch, nodes, size, generator=generator)).to(dtype)
    gone = torch.rand(batch, nodes, size, generator=generator) < 0.2
    gone[..., int(torch.randint(size, (), generator=generator))] = False
    made = made.masked_fill(gone, -torch.inf)
    if spoiled:
        for node, value in zip(range(nodes), (torch.nan, -torch.inf, torch.inf), strict=False):
            made[-1, node, slice(None) if value == -torch.inf else size // 2] = value
    return made


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """How far sums in another order may lie apart."""
    return {"rtol": 1e-11, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 1e-6}


def both_forms(given: Tensor) -> tuple[LogLaw, Tensor]:
    """The laws of scores as kernels hold them, and written out."""
    law = law_rows(given)
    assert isinstance(law, LogLaw)
    return law, dense_reference(law)

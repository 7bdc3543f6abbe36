"""Rows of products and elements of functions keep their bits, whatever stands beside them and wherever they stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mmspec.core.layers.strict import StrictMode
from mmspec.core.layers.strict_ops import BLOCK, PROMPT_BLOCK, in_blocks, in_vectors

DTYPES = (torch.float32, torch.bfloat16)
COUNTS = (1, 2, 3, 7, 8, 9, 16, 30)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def moved(count: int, place: int, row: Tensor, seed: int) -> Tensor:
    """`count` random rows, one of which is `row`."""
    rows = 5 * noise(count, row.shape[-1], seed=seed, dtype=row.dtype)
    rows[place] = row
    return rows


def apart(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """How many of the rows x [n, K] have other bits among other rows than alone."""
    found = 0
    for n, row in enumerate(x):
        alone = function(row[None])[0]
        places = {(count, place) for count in COUNTS for place in (0, count // 2, count - 1)}
        made = [function(moved(count, place, row, n))[place] for count, place in sorted(places)]
        found += any(not torch.equal(alone, entry) for entry in made)
    return found


@pytest.mark.parametrize("rows", (BLOCK, PROMPT_BLOCK))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", ((40, 7), (64, 101), (256, 688), (1376, 96)), ids=str)
def test_a_row_of_a_product_keeps_its_bits(shape: tuple[int, int], dtype: torch.dtype, rows: int) -> None:
    weight, x = noise(shape[1], shape[0], dtype=dtype), noise(3, shape[0], seed=1, dtype=dtype)
    assert apart(lambda some: in_blocks(lambda block: F.linear(block, weight), some, rows), x) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_blocks_it_does_not(dtype: torch.dtype) -> None:
    weight, x = noise(512, 1376, dtype=dtype), noise(64, 1376, seed=1, dtype=dtype)
    together, alone = F.linear(x, weight), torch.cat([F.linear(row[None], weight) for row in x])
    if torch.equal(together, alone):
        pytest.skip("products of this type keep their bits on this processor")
    blocks = in_blocks(lambda block: F.linear(block, weight), x, BLOCK)
    single = [in_blocks(lambda block: F.linear(block, weight), row[None], BLOCK) for row in x]
    assert torch.equal(blocks, torch.cat(single))


@pytest.mark.parametrize("count", COUNTS)
def test_blocks_and_vectors_compute_the_function_itself(count: int) -> None:
    x, weight = noise(2, count, 20), noise(5, 20, seed=1)
    torch.testing.assert_close(in_blocks(lambda block: block @ weight.T, x, BLOCK), x @ weight.T)
    torch.testing.assert_close(in_vectors(F.silu, x), F.silu(x))
    assert in_vectors(F.silu, x[..., ::3]).shape == x[..., ::3].shape


@pytest.mark.parametrize("width", (1, 20, 48, 1376))
def test_an_element_of_a_function_keeps_its_bits(width: int) -> None:
    x = 3 * noise(4, width)
    assert apart(lambda some: in_vectors(F.silu, some), x) == 0


def test_without_whole_vectors_it_does_not() -> None:
    x = 3 * noise(40, 48)
    if not apart(F.silu, x):
        pytest.skip("functions keep their bits on this processor")
    assert apart(lambda some: in_vectors(F.silu, some), x) == 0


CALLS = {
    "linear": lambda x, w: F.linear(x, w, w[:, 0]),
    "addmm": lambda x, w: torch.addmm(w[:, 0], x, w.T),
    "mm": lambda x, w: torch.mm(x, w.T),
    "matmul": lambda x, w: torch.matmul(x, w.T),
    "operator": lambda x, w: x @ w.T,
    "method": lambda x, w: x.matmul(w.T),
    "bmm": lambda x, w: torch.bmm(x[None], w.T[None])[0],
    "grouped": lambda x, w: F.grouped_mm(x, w.T[None], offs=torch.tensor([len(x)], dtype=torch.int32)),
}


@pytest.mark.parametrize("name", CALLS)
def test_model_products_are_computed_in_blocks(name: str) -> None:
    weight, x = noise(688, 256), noise(12, 256, seed=1)

    def strict(some: Tensor) -> Tensor:
        with StrictMode(BLOCK):
            return CALLS[name](some, weight)

    assert apart(strict, x) == 0
    torch.testing.assert_close(strict(x), CALLS[name](x, weight), rtol=1e-4, atol=1e-3)

"""Sampling by inversion."""

from __future__ import annotations

import pytest
import torch

from mmspec.kernels.sampling import sample_categorical

ENDS = (0.0, 2.0**-60, 0.5, 1 - 2.0**-24, 1 - 2.0**-53)


@pytest.mark.parametrize("size", (1, 7, 127, 1013))
def test_it_inverts_the_distribution_function(size: int) -> None:
    weight = torch.rand(5, size, dtype=torch.float64)
    uniform = torch.rand(5, dtype=torch.float64)
    share = weight.cumsum(-1) / weight.sum(-1, keepdim=True)
    for row, index in enumerate(sample_categorical(weight, uniform).tolist()):
        assert share[row, index] > uniform[row] and (index == 0 or share[row, index - 1] <= uniform[row])


@pytest.mark.parametrize("u", ENDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_no_index_without_weight_is_returned(u: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(200, 33, generator=generator).to(dtype)
    weight[torch.rand(200, 33, generator=generator) < 0.8] = 0
    weight[:, 20] += 1e-6
    index = sample_categorical(weight, torch.full((200,), u, dtype=torch.float64))
    assert (weight.gather(1, index[:, None]) > 0).all()


@pytest.mark.parametrize("scale", (1e-30, 1.0, 1e30))
def test_weights_need_no_norm(scale: float) -> None:
    weight = torch.tensor([[1.0, 2.0, 1.0]]).repeat(3, 1)
    index = sample_categorical(weight * scale, torch.tensor([0.24, 0.5, 0.76]))
    assert index.tolist() == [0, 1, 2]


def test_rows_without_a_distribution_stay_in_range() -> None:
    weight = torch.tensor([[0.0, 0.0, 0.0], [torch.nan, 1.0, 1.0], [1.0, torch.nan, 1.0], [torch.nan] * 3])
    for u in ENDS:
        index = sample_categorical(weight, torch.full((4,), u, dtype=torch.float64))
        assert bool(((index >= 0) & (index < 3)).all())

"""The shared fixtures do what the other tests rely on."""

from __future__ import annotations

import os

import pytest
import torch


def test_uninitialised_memory_is_left_alone_by_default() -> None:
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.poison
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.complex64])
def test_poison_fills_floats_with_nan(dtype: torch.dtype) -> None:
    like = torch.zeros(5, dtype=dtype)
    made = [torch.empty(5, dtype=dtype), torch.empty_like(like), like.new_empty(5), torch.empty_strided((5,), (1,))]
    assert all(tensor.isnan().all() for tensor in made)


@pytest.mark.poison
def test_poison_fills_integers_with_the_largest_value() -> None:
    assert (torch.empty(7, dtype=torch.int64) == torch.iinfo(torch.int64).max).all()


@pytest.mark.parametrize("repeat", [0, 1])
def test_every_test_starts_from_the_same_seed(repeat: int) -> None:
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_the_suite_is_offline() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == "1"

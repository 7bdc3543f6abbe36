"""Rotary positions on the grid."""

from __future__ import annotations

import re

import pytest
import torch

from mmspec.imagegen.grid_rope import grid_table
from mmspec.imagegen.llamagen.transformer import GridRotary, apply_rotary
from tests.parity import case


def test_tables_equal_the_public_code() -> None:
    data = case("llamagen/rope2d")
    tables = {name: value for name, value in data.items() if name.startswith("table.")}
    assert len(tables) == 8
    for name, expected in tables.items():
        grid, head_dim, prefix = map(int, re.findall(r"\d+", name))
        made = grid_table(grid, head_dim, prefix)
        torch.testing.assert_close(torch.view_as_real(made), expected, atol=1e-6, rtol=0)
        assert not torch.view_as_real(made)[:prefix].any()


@pytest.mark.parametrize(("grid", "head_dim", "prefix", "given"), [(4, 16, 8, "apply.x"), (4, 20, 1, "apply.x_hd20")])
def test_turning_equals_the_public_code(grid: int, head_dim: int, prefix: int, given: str) -> None:
    data = case("llamagen/rope2d")
    table = GridRotary(grid, head_dim, prefix, 10000)
    expected = data[f"apply.out_grid{grid}_hd{head_dim}_prefix{prefix}"]
    x = data[given][:, : expected.shape[1]]
    position = torch.arange(expected.shape[1])
    for at in (position, position.expand(len(x), -1)):
        torch.testing.assert_close(apply_rotary(x, table.at(at)), expected, atol=1e-6, rtol=0)
    assert not apply_rotary(x, table.at(position))[:, :prefix].any()


def test_turning_keeps_the_type_and_the_gradient() -> None:
    table = GridRotary(2, 8, 1, 10000)
    x = torch.randn(1, 5, 2, 8, dtype=torch.bfloat16, requires_grad=True)
    turned = apply_rotary(x, table.at(torch.arange(5)))
    assert turned.dtype == torch.bfloat16
    turned.float().square().sum().backward()
    assert not x.grad[:, 0].any() and x.grad[:, 1:].any()


def test_logits_depend_on_relative_time_row_and_column_only() -> None:
    table = grid_table(3, 16, 2, frames=4, time_pairs=2)[2:].view(4, 3, 3, 8)
    drawn = torch.Generator().manual_seed(0)
    query, key = (torch.randn(8, dtype=torch.complex64, generator=drawn) for _ in range(2))

    def logit(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
        return float((query * table[one] * (key * table[other]).conj()).real.sum())

    assert logit((3, 2, 1), (1, 0, 1)) == pytest.approx(logit((2, 2, 2), (0, 0, 2)), abs=1e-5)
    assert logit((3, 2, 1), (1, 0, 1)) != pytest.approx(logit((2, 2, 1), (1, 0, 1)), abs=1e-2)


def test_time_turns_the_first_pairs_and_nothing_else_changes_with_the_frame() -> None:
    video, image = grid_table(3, 16, 2, frames=4, time_pairs=2), grid_table(3, 16, 2)
    table = video[2:].view(4, 9, 8)
    assert not torch.view_as_real(video[:2]).any()
    assert torch.equal(table[:, :, 2:], table[:1, :, 2:].expand(4, -1, -1))
    assert torch.equal(table[0, :, :2], torch.ones(9, 2, dtype=torch.complex64))
    angle = torch.arange(4)[:, None] * 10000.0 ** (-torch.arange(2) / 2)
    torch.testing.assert_close(table[:, 5, :2], torch.polar(torch.ones(4, 2), angle))
    assert torch.equal(grid_table(3, 16, 2, frames=4)[2:].view(4, 9, 8), image[2:].expand(4, -1, -1))


def test_rows_come_before_columns() -> None:
    table = grid_table(3, 8, 0).view(3, 3, 4)
    ones = torch.ones(2, dtype=torch.complex64)
    assert torch.equal(table[0, 2, :2], ones) and torch.equal(table[2, 0, 2:], ones)
    assert torch.equal(table[1, 0, :2], table[0, 1, 2:])

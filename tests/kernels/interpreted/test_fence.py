"""The fence around kernels finds a planted fault of every kind, and nothing in kernels without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.fence import fenced


@triton.jit
def shift_kernel(p_x, p_y, ahead, size, TILE: tl.constexpr):
    """Write every value of x to a place of y that is `ahead` of its own."""
    o = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(p_y + o + ahead, tl.load(p_x + o, mask=o < size, other=0), mask=o < size)


@triton.jit
def number_kernel(p_y, SAME: tl.constexpr):
    """Write a number of every program to the same place."""
    tl.store(p_y, 7 if SAME else tl.program_id(0))


@triton.jit
def lanes_kernel(p_y, SAME: tl.constexpr, TILE: tl.constexpr):
    """Write all values of a program to the same place."""
    o = tl.arange(0, TILE)
    tl.store(p_y + o * 0, o * 0 if SAME else o)


@triton.jit
def count_kernel(p_y):
    tl.atomic_add(p_y, 1)


X = torch.arange(16.0)


def shift(x: torch.Tensor, y: torch.Tensor, ahead: int = 0, size: int = 16, programs: int = 4) -> None:
    shift_kernel[(programs,)](x, y, ahead, size, TILE=4)


def in_place(ahead: int) -> None:
    x = torch.arange(24.0)
    shift(x[4:20], x[4:20] if not ahead else x, ahead and 4 + ahead, programs=4)


PLANTED: dict[str, tuple[str, str, Callable[[], None]]] = {
    "a load behind the end": ("outside", "load", lambda: shift(X, torch.zeros(40), size=32, programs=8)),
    "a store behind the end": ("outside", "store", lambda: shift(X, torch.zeros(16), ahead=4)),
    "a store before the start": ("outside", "store", lambda: shift(X, torch.zeros(16), ahead=-1)),
    "a load behind a view": (
        "beyond",
        "load",
        lambda: shift(torch.zeros(32)[:16], torch.zeros(32), size=20, programs=5),
    ),
    "a load between the rows of a view": ("beyond", "load", lambda: shift(torch.zeros(4, 8)[:, :4], torch.zeros(16))),
    "a store before a view": ("beyond", "store", lambda: shift(X, torch.zeros(32)[8:], ahead=-2)),
    "a store over what a later program reads": ("torn", "load", lambda: in_place(4)),
    "a store over what an earlier program has read": ("torn", "store", lambda: in_place(-4)),
    "programs that store two values": ("torn", "store", lambda: number_kernel[(2,)](torch.zeros(1).int(), SAME=False)),
    "lanes that store two values": (
        "torn",
        "store",
        lambda: lanes_kernel[(1,)](torch.zeros(4).int(), SAME=False, TILE=4),
    ),
    "a load of new memory": ("unset", "load", lambda: shift(torch.empty(16), torch.zeros(16))),
    "a load of new memory like another": ("unset", "load", lambda: shift(torch.empty_like(X), torch.zeros(16))),
    "a load of new flags": ("unset", "load", lambda: shift(X.new_empty(16, dtype=torch.bool), torch.zeros(16).bool())),
    "a load of memory written in part": ("unset", "load", lambda: shift(half_written(), torch.zeros(16))),
}
SOUND: dict[str, Callable[[], None]] = {
    "a copy": lambda: shift(X, torch.empty(16)),
    "a copy in place": lambda: in_place(0),
    "a copy of all of a wide view": lambda: shift(torch.zeros(4, 4).T, torch.empty(16)),
    "programs that store a value": lambda: number_kernel[(3,)](torch.empty(1, dtype=torch.int32), SAME=True),
    "lanes that store a value": lambda: lanes_kernel[(1,)](torch.zeros(4).int(), SAME=True, TILE=4),
    "an expanded row": lambda: number_kernel[(1,)](torch.zeros(1).int().expand(4), SAME=True),
}


def half_written() -> torch.Tensor:
    x = torch.empty(16)
    x[:8] = 1
    return x


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    kind, access, run = PLANTED[name]
    with fenced() as fence:
        run()
    assert {fault.kind for fault in fence.faults} == {kind}, fence.report()
    assert all(fault.access.startswith(access) and fault.kernel.endswith("_kernel") for fault in fence.faults)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_passes(name: str) -> None:
    with fenced() as fence:
        SOUND[name]()
    assert not fence.faults, fence.report()
    assert sum(fence.launches.values()) == 1 and fence.values


def test_the_fence_ends_with_its_block() -> None:
    with fenced() as outer:
        with fenced() as inner:
            shift(X, torch.zeros(16), ahead=4)
        shift(X, torch.zeros(16))
    shift(torch.empty(16), torch.zeros(16))
    assert inner.faults and not outer.faults and outer.launches == {"shift_kernel": 1}


def test_atomic_operations_are_refused() -> None:
    with pytest.raises(Exception, match="got atomic_rmw"), fenced():
        count_kernel[(1,)](torch.zeros(1).int())

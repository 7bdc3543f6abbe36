"""Dispatch of an op to its Triton kernel or its torch reference, and checks of its arguments.

Checks read shapes, dtypes and strides only, never values, so that nothing here waits for a GPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

# read once, since Triton decides when a kernel is defined; for tests on small sizes
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def on_kernels(tensor: Tensor) -> bool:
    """Return whether an op on this tensor runs its kernel: on a GPU with Triton, or on a CPU in Triton's interpreter. A
    GPU without Triton uses the reference and warns once."""
    return tensor.is_cuda and has_triton() or INTERPRETED and tensor.is_cpu and has_triton()


@cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"mmspec.kernels: expected Triton for the ops of a GPU, got none ({error}); the torch references run instead, "
            "install triton for the kernels",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


_show: ContextVar[Callable[[tuple], None] | None] = ContextVar("show", default=None)


@contextmanager
def launches_shown(show: Callable[[tuple], None]) -> Iterator[None]:
    """Call `show` with the arguments of every kernel launch of this thread, which torch's dispatcher does not see."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


def show_launch(arguments: tuple) -> None:
    if (show := _show.get()) is not None:
        show(arguments)


FLOATS = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
WIDE = frozenset({torch.float32, torch.float64})
INDEX = frozenset({torch.int64})
BOOL = frozenset({torch.bool})


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of probabilities for scores of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _fits(actual: Sequence[int], shape: Sequence[int | None]) -> bool:
    # a loop costs less than a generator, and every wrapper of a round calls this several times
    if len(actual) != len(shape):
        return False
    for want, size in zip(shape, actual, strict=True):
        if want is not None and want != size:
            return False
    return True


def expect(name: str, tensor: Tensor, dtypes: frozenset[torch.dtype], *shape: int | None) -> None:
    """Check the dtype and the shape of an argument; None stands for any size."""
    actual = tensor.shape
    if tensor.dtype not in dtypes:
        allowed = " or ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise ValueError(f"{name}: expected {allowed}, got {str(tensor.dtype).removeprefix('torch.')}")
    if _fits(actual, shape):
        return
    sizes = ", ".join("*" if want is None else str(want) for want in shape)
    raise ValueError(f"{name}: expected shape [{sizes}], got {list(actual)}")


def expect_dense(name: str, tensor: Tensor) -> None:
    """Check that the last axis is contiguous in memory."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: expected a last axis of stride 1, got strides {tensor.stride()}, make it contiguous")


def expect_rows(name: str, tensor: Tensor, batch: int, *shape: int | None) -> None:
    """Check that the first axis is 1 (shared by all rows) or `batch`, and the others are `shape`."""
    actual = tensor.shape
    if actual[0] in (1, batch) and _fits(actual[1:], shape):
        return
    if actual[0] not in (1, batch):
        raise ValueError(f"{name}: expected a first axis of 1 or {batch}, got {list(tensor.shape)}")
    expect(name, tensor[0], frozenset({tensor.dtype}), *shape)

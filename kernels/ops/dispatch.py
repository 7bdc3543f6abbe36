"""Dispatch of an op to its Triton kernel or its torch reference, and the checks of its arguments.

Checks look at shapes, dtypes and strides only, never at values: nothing here waits for a GPU.
"""

from __future__ import annotations

import os
import warnings
from functools import cache

import torch
from torch import Tensor

# Triton decides when a kernel is defined, so it is read once; for tests, on small sizes
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def on_kernels(tensor: Tensor) -> bool:
    """Whether an op on this tensor runs its kernel: on a GPU with Triton at hand, and on a CPU inside Triton's interpreter.

    A GPU without Triton takes the reference and says so once, as a warning.
    """
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


FLOATS = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
WIDE = frozenset({torch.float32, torch.float64})
INDEX = frozenset({torch.int64})
BOOL = frozenset({torch.bool})


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the probabilities of scores of this dtype are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def expect(name: str, tensor: Tensor, dtypes: frozenset[torch.dtype], *shape: int | None) -> None:
    """Raises ValueError unless the tensor has one of the dtypes and this shape; None stands for any size."""
    if tensor.dtype not in dtypes:
        allowed = " or ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
        raise ValueError(f"{name}: expected {allowed}, got {str(tensor.dtype).removeprefix('torch.')}")
    found = tensor.shape
    if len(found) != len(shape) or any(w is not None and w != s for w, s in zip(shape, found, strict=True)):
        wanted = ", ".join("*" if w is None else str(w) for w in shape)
        raise ValueError(f"{name}: expected shape [{wanted}], got {list(found)}")


def expect_dense(name: str, tensor: Tensor) -> None:
    """Raises ValueError unless neighbours along the last axis are neighbours in memory."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: expected a last axis of stride 1, got strides {tensor.stride()}, make it contiguous")


def expect_rows(name: str, tensor: Tensor, batch: int, *shape: int | None) -> None:
    """Raises ValueError unless the first axis is 1 (shared by all rows) or `batch`, and the others are `shape`."""
    if tensor.shape[0] not in (1, batch):
        raise ValueError(f"{name}: expected a first axis of 1 or {batch}, got {list(tensor.shape)}")
    expect(name, tensor[0], frozenset({tensor.dtype}), *shape)

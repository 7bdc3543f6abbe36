"""Which side of an op runs: its Triton kernel or its torch reference."""

from __future__ import annotations

import os
import warnings
from functools import cache

from torch import Tensor

# Triton decides when a kernel is defined, so it is read once; for tests, on small sizes
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def on_kernels(tensor: Tensor) -> bool:
    """Whether an op on this tensor runs its kernel: on a GPU with Triton at hand, and on a CPU inside Triton's interpreter.

    A GPU without Triton takes the reference and says so once, as a warning.
    """
    return tensor.is_cuda and triton_at_hand() or INTERPRETED and tensor.is_cpu and triton_at_hand()


@cache
def triton_at_hand() -> bool:
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

"""Kernels against their references under Triton's interpreter, on a CPU.

Triton decides when a kernel is defined, and the wrappers would take kernels for every tensor of the process. So these files
are collected only where TRITON_INTERPRET is 1, which `tests/kernels/test_interpreted.py` sets in processes of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy
import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def quiet_numpy() -> Iterator[None]:
    """The interpreter computes with numpy, which warns of the infinities and NaN that these tests are about."""
    with numpy.errstate(all="ignore"):
        yield

"""Kernels against their references: under Triton's interpreter on a CPU, and compiled on a GPU.

Triton decides when a kernel is defined, and the wrappers would take kernels for every tensor of the process. So these files
are collected only in processes of their own, which `tests/kernels/test_interpreted.py` starts: with TRITON_INTERPRET=1, or
with MMSPEC_KERNELS=cuda, where the tensors of the tests lie on the GPU. With MMSPEC_FENCE=1 beside the interpreter every test
runs behind the fence (`tests/kernels/fence.py`), not only those that ask for it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

DEVICE = os.environ.get("MMSPEC_KERNELS", "cpu")
FENCED = os.environ.get("MMSPEC_FENCE") == "1"
LAUNCHES: Counter[str] = Counter()  # behind the fence, by kernel
if os.environ.get("TRITON_INTERPRET") != "1" and DEVICE == "cpu":
    collect_ignore_glob = ["test_*.py"]
# files whose new tensors move; the ops have to put theirs beside their arguments without help
_MOVED = ("/tests/", "/mmspec/certify/", "/mmspec/core/round/tree.py", "/mmspec/core/round/keys.py")
_PLACED = {*_device_constructors(), Tensor.to}


class MovedTensors(TorchFunctionMode):
    """New CPU tensors of tests move to the device, so that both lanes have the same numbers."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _PLACED and isinstance(made, Tensor) and made.is_cpu:
            caller = sys._getframe(1).f_code.co_filename
            if any(part in caller for part in _MOVED):
                return made.to(DEVICE)
        return made


if DEVICE != "cpu":
    MovedTensors().__enter__()  # for the whole process: files make tensors when they are imported


@pytest.fixture
def fence() -> Iterator[None]:
    """The memory of all launches of the test is checked; on a GPU there is no fence."""
    if DEVICE != "cpu":
        yield
        return
    from tests.kernels.fence import fenced

    with fenced() as fence:
        yield
    LAUNCHES.update(fence.launches)
    assert not fence.faults, fence.report()


@pytest.fixture(autouse=True)
def fence_around_all(request: pytest.FixtureRequest) -> None:
    if FENCED and request.path.name != "test_fence.py":
        request.getfixturevalue("fence")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how much the fence has seen, so that a lane behind it cannot pass without it."""
    if LAUNCHES:
        terminalreporter.write_line(f"fence: {sum(LAUNCHES.values())} launches of {len(LAUNCHES)} kernels")


@pytest.fixture(autouse=True)
def quiet_numpy() -> Iterator[None]:
    """The interpreter computes with numpy, which warns of the infinities and NaN that these tests are about."""
    with numpy.errstate(all="ignore"):
        yield

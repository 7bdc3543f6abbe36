"""A pretend GPU: tensors in main memory that refuse to meet tensors of the CPU, as tensors of two real devices would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from mmspec.run.placement import Placement

# a device type that torch knows everywhere and no code of mmspec treats apart
GPU, CPU = torch.device("xpu"), torch.device("cpu")
_MAY_MIX = {
    "_has_compatible_shallow_copy_type",
    "__getitem__",
    "__setitem__",
    "copy_",
    "type_as",
    "manual_seed",
    "__set__",
}
_COPIES = {"to", "cpu", "_to_copy"}


class PretendGpu(TorchFunctionMode):
    """Follows which tensors lie on the pretend GPU, and raises where an operation takes tensors of both devices.

    Attributes:
        operations: The number of operations on tensors of the GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in ("_parse_to", "device"):
            return func(*args, **kwargs)
        if func == Tensor.device.__get__:
            return GPU if is_far(args[0]) else CPU
        if func == Tensor.data.__set__:
            _mark(args[0], is_far(args[1]))
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        # as on a GPU, numbers of the CPU may meet tensors of the other device
        far = [is_far(tensor) for tensor in tensors if tensor.dim()] or [any(is_far(tensor) for tensor in tensors)]
        if name not in _MAY_MIX and len(set(far)) > 1:
            raise RuntimeError(f"{name}: expected tensors on one device, got some on {GPU} and some on {CPU}")
        is_there = far[0]
        if name == "numpy" and is_there:
            raise TypeError(f"numpy: expected a tensor of the CPU, got one on {GPU}")
        self.operations += is_there
        place = CPU if name == "cpu" else _named_device(args, kwargs)
        if place is not None and (name in _COPIES or not tensors or "device" in kwargs):
            is_there = place.type == GPU.type
        args, kwargs = tree_map(_in_memory, (args, kwargs))
        result = func(*args, **kwargs)
        if name in _COPIES and any(result is tensor for tensor in tensors) and is_there != is_far(result):
            result = result.alias() if hasattr(result, "alias") else torch.ops.aten.alias(result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not (name in ("__setitem__",) or any(leaf is other for other in tensors)):
                _mark(leaf, is_there)
        return result


def is_far(tensor: Tensor) -> bool:
    """Whether a tensor lies on the pretend GPU."""
    return getattr(tensor, "_is_far", False)


def _mark(tensor: Tensor, is_there: bool) -> None:
    tensor._is_far = is_there


def _named_device(args: tuple, kwargs: dict) -> torch.device | None:
    for one in (*args[1:], kwargs.get("device")):
        if isinstance(one, torch.device) or (isinstance(one, str) and one in ("cpu", GPU.type)):
            return torch.device(one)
    return None


def _in_memory(value: Any) -> Any:
    """The argument that torch gets in place of the pretend GPU."""
    return CPU if isinstance(value, torch.device | str) and str(value) == GPU.type else value


@contextmanager
def pretend_gpu(patch: pytest.MonkeyPatch) -> Iterator[PretendGpu]:
    """Let "auto" name the pretend GPU in benches and sweeps until the block ends."""
    for module in ("config", "plan"):
        patch.setattr(
            f"mmspec.evaluate.engine.{module}.placement_of", lambda device, dtype="auto": Placement(GPU.type, dtype)
        )
    with PretendGpu() as mode:
        yield mode

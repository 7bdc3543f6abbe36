"""Whether a function can be replayed: it asks nothing of the device, and does the same at every call.

A graph repeats kernels, addresses and the host's numbers as they were. So no step may depend on what the host reads of a
tensor (a value, a count of True, a shape that hangs on values), none may bring the host's numbers over, and two calls must be
the same steps over the same shapes and numbers. That is asked of the function itself, whatever model it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from mmspec.core.graphs.static import Refused

# operators whose outcome the host has to know before it can go on
_ASKING = frozenset(
    "_local_scalar_dense nonzero nonzero_numpy masked_select equal allclose is_nonzero item unique_dim _unique _unique2 "
    "unique_consecutive unique_dim_consecutive bincount histc argwhere".split()
)
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
# what of Python reads a tensor past the dispatcher
_READING = frozenset(("tolist", "numpy", "__array__", "cpu", "__bool__", "__int__", "__float__", "__index__", "item"))


class HostRead(Refused):
    """A step that the host has a part in."""


class Watched(TorchDispatchMode):
    """Refuses steps that the host has a part in and writes the others down.

    steps: name of each, shapes and dtypes of its tensors, and its numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        parts = tree_flatten((args, kwargs))[0]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if name in _ASKING or (name == "repeat_interleave" and "output_size" not in kwargs):
            raise HostRead(f"expected a round that asks nothing of the device, got {name}")
        if name in _INDEXING and _asks(args[1]):
            raise HostRead("expected a round that asks nothing of the device, got an index of booleans")
        if name == "lift_fresh":
            raise HostRead("expected a round without numbers of the host, got a tensor made of some")
        made = func(*args, **kwargs)
        there = [part.device for part in tree_flatten(made)[0] if isinstance(part, Tensor)]
        if any(one.device.type != "cpu" and one.dim() for one in tensors) and any(d.type == "cpu" for d in there):
            raise HostRead(f"expected a round that stays on its device, got {name} to the host")
        self.steps.append((name, tuple(map(_said, parts))))
        return made


class _Reads(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(func, "__name__", "") in _READING:
            raise HostRead(f"expected a round that asks nothing of the device, got {func.__name__}")
        if func is Tensor.__setitem__ and _is_fill(*args[1:]):
            # older versions of torch show this step as a tensor made of a number, though the device gets the number alone
            args[0][args[1]].fill_(args[2])
            return None
        return func(*args, **(kwargs or {}))


def _is_fill(index: Any, value: Any) -> bool:
    """Return whether an assignment puts a number of Python into a view."""
    parts = index if isinstance(index, tuple) else (index,)
    basic = all(part is None or part is ... or type(part) in (int, slice) for part in parts)
    return basic and isinstance(value, bool | int | float)


def steps_of(function: Callable[[], None]) -> list[tuple]:
    """What a call does, step by step.   Raises HostRead."""
    with _Reads(), Watched() as watched:
        function()
    return watched.steps


def prove(function: Callable[[], None]) -> None:
    """Raises Refused for a function that cannot be replayed. It runs three times, so nothing it changes may matter yet."""
    function()  # constants are made once, and may be asked for their values then
    first, second = steps_of(function), steps_of(function)
    if first != second:
        n = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
        raise Refused(
            f"expected rounds of the same steps, got {len(first)} and then {len(second)} that differ from {n} on"
        )


def _asks(indices: Any) -> bool:
    """Whether an index takes what is True, of which somebody has to know how much there is."""
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in tree_flatten(indices)[0])


def _said(part: Any) -> Any:
    return (tuple(part.shape), part.dtype) if isinstance(part, Tensor) else repr(part)

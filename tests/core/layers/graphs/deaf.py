"""A stretch of code in which nothing may ask a tensor for anything that a device would have to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

METHODS = (
    "item tolist numpy cpu __bool__ __int__ __float__ __index__ __array__ __contains__ nonzero masked_select unique argwhere "
    "equal allclose"
).split()
FUNCTIONS = "nonzero masked_select unique unique_consecutive argwhere equal allclose bincount".split()


class Asked(AssertionError):
    """Somebody asked."""


@contextmanager
def deaf() -> Iterator[None]:
    """Inside, methods and functions that read a tensor raise Asked, and so does an index of booleans."""
    with _Deaf():  # nothing is patched: a method that was set on Tensor leaves its mark when it is taken off again
        yield


def in_deafness(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """As `mmspec.core.layers.graphs.capture`, whose every call is such a stretch."""

    def call() -> None:
        with deaf():
            function()

    return call


class _Deaf(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in METHODS or name in FUNCTIONS:
            raise Asked(name)
        if name in ("__getitem__", "__setitem__") and any(
            map(_asks, args[1] if isinstance(args[1], tuple) else args[1:2])
        ):
            raise Asked("an index of booleans, or of one number")
        if name == "where" and len(args) + len(kwargs) == 1:
            raise Asked("where of a mask alone")
        return func(*args, **kwargs)


def _asks(part: Any) -> bool:
    return isinstance(part, Tensor) and (part.dtype in (torch.bool, torch.uint8) or part.dim() == 0)

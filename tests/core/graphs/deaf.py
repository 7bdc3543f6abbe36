"""A stretch of code in which nothing may ask a tensor for anything that a device would have to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

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
    patches = [patch.object(Tensor, name, _refusing(name)) for name in METHODS]
    patches += [patch.object(torch, name, _refusing(name)) for name in FUNCTIONS]
    patches += [patch.object(Tensor, name, _unmasked(getattr(Tensor, name))) for name in ("__getitem__", "__setitem__")]
    patches.append(patch.object(torch, "where", _of_three(torch.where)))
    try:
        for one in patches:
            one.start()
        yield
    finally:
        for one in reversed(patches):
            one.stop()


def in_deafness(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """As `mmspec.core.graphs.replay.replayed`, whose every call is such a stretch."""

    def call() -> None:
        with deaf():
            function()

    return call


def _refusing(name: str) -> Callable:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise Asked(name)

    return refuse


def _unmasked(own: Callable) -> Callable:
    def index(tensor: Tensor, at: Any, *value: Any) -> Any:
        parts = at if isinstance(at, tuple) else (at,)
        if any(
            isinstance(part, Tensor) and (part.dtype in (torch.bool, torch.uint8) or part.dim() == 0) for part in parts
        ):
            raise Asked("an index of booleans, or of one number")
        return own(tensor, at, *value)

    return index


def _of_three(own: Callable) -> Callable:
    def where(*args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) == 1:
            raise Asked("where of a mask alone")
        return own(*args, **kwargs)

    return where

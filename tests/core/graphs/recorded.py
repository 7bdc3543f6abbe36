"""A stand-in for a CUDA graph: writes down the steps of one call and repeats them, in the same memory, without its Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Tape(TorchDispatchMode):
    """Every operator of the dispatcher, with the very tensors and numbers it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple, dict, list]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, tree_flatten(made)[0]))
        return made


@torch.no_grad()
def recorded(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """As `mmspec.core.graphs.capture`: a replay knows the numbers and addresses of the recorded call and no others."""
    with Tape() as tape:
        function()

    @torch.no_grad()
    def replay() -> None:
        for func, args, kwargs, homes in tape.steps:
            for home, new in zip(homes, tree_flatten(func(*args, **kwargs))[0], strict=True):
                if isinstance(home, Tensor) and home.data_ptr() != new.data_ptr():
                    home.copy_(new)

    return replay

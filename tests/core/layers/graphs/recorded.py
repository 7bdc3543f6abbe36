"""A stand-in for a CUDA graph: it notes the steps of a call and repeats them in the same memory, without their Python.

Like a graph it owns the memory of its own results and knows addresses alone of all other memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only


class Stale(RuntimeError):
    """A replay would use memory that has been freed, moved or resized since the recording."""


@dataclass(frozen=True)
class Place:
    """A tensor by its address, in a storage that somebody else has to keep."""

    step: str
    storage: weakref.ref
    address: int
    size: int
    dtype: torch.dtype
    view: tuple[int, tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, tensor: Tensor, step: str) -> Place:
        storage, view = tensor.untyped_storage(), (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        return cls(step, weakref.ref(storage), storage.data_ptr(), storage.nbytes(), tensor.dtype, view)

    def tensor(self) -> Tensor:
        storage = self.storage()
        if storage is None or (storage.data_ptr(), storage.nbytes()) != (self.address, self.size):
            change = "freed" if storage is None else "moved or resized"
            raise Stale(
                f"{self.step}: expected {list(self.view[1])} of {self.dtype} where it was, it has been {change}"
            )
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.view)


class Tape(TorchDispatchMode):
    """Every operator of the dispatcher, with its numbers, its own tensors and the places of all others."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple, dict, list]] = []
        self._own: dict[int, torch.UntypedStorage] = {}  # kept, so that no other storage gets their identity
        self._others: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        step = func.overloadpacket.__name__
        placed = (args, kwargs or {})
        if step != "lift_fresh":  # a number that Python has just made belongs to the recording
            placed = tree_map_only(Tensor, lambda tensor: self._placed(tensor, step), placed)
        output = func(*args, **(kwargs or {}))
        results = [self._result(part, step) for part in tree_flatten(output)[0]]
        self.steps.append((func, *placed, results))
        return output

    def _placed(self, tensor: Tensor, step: str) -> Tensor | Place:
        storage = tensor.untyped_storage()
        if storage._cdata in self._own or not storage.nbytes():
            return tensor
        self._others[storage._cdata] = weakref.ref(storage)
        return Place.of(tensor, step)

    def _result(self, part: Any, step: str) -> Any:
        if not isinstance(part, Tensor):
            return part
        storage = part.untyped_storage()
        known = self._others.get(storage._cdata)
        if known is None or known() is not storage:
            self._own[storage._cdata] = storage
        return self._placed(part, step)


@torch.no_grad()
def recorded(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """As `mmspec.core.layers.graphs.capture`: a replay knows the numbers and addresses of the recorded call and no others.

    Raises:
        Stale: In a replay, that memory of the recorded call is no longer there.
    """
    with Tape() as tape:
        function()

    @torch.no_grad()
    def replay() -> None:
        for func, args, kwargs, homes in tape.steps:
            args, kwargs, homes = tree_map_only(Place, Place.tensor, (args, kwargs, homes))
            for home, new in zip(homes, tree_flatten(func(*args, **kwargs))[0], strict=True):
                if isinstance(home, Tensor) and home.data_ptr() != new.data_ptr():
                    home.copy_(new)

    return replay

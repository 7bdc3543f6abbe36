"""A fence around the memory of kernels in Triton's interpreter: every load and store of a launch is checked.

    with fenced() as fence:
        ...                     # launches of any kernels
    assert not fence.faults, fence.report()

Its faults have one of these kinds:

    outside   an address in none of the storages of the launch's arguments
    beyond    an address in a storage, but in none of the views that are arguments
    torn      a program stores bytes that another program of the launch reads, or stores with other values
    unset     a load of memory that nobody has written since `torch.empty` and its relatives

Programs of a launch run one after the other here and in any order on a GPU, so that a wrong result shows only there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.runtime import interpreter

_MARK = 0xA5  # fills new memory; a value of these bytes alone is as good as never computed
_NEW = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
_MEMORY, _ARGUMENTS = interpreter._interpreter, interpreter.GridExecutor._init_args_hst
_MANY = -1  # in place of a program's number


class Fault(NamedTuple):
    kind: str
    kernel: str
    access: str


class Block:
    """The bytes of a storage in a launch: which of them the arguments show, and who has read and written them."""

    def __init__(self, storage: torch.UntypedStorage):
        self.start, self.size = storage.data_ptr(), storage.nbytes()
        self.bytes: NDArray = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        self.shown = np.zeros(self.size, bool)
        self.reader, self.writer = np.zeros(self.size, np.int32), np.zeros(self.size, np.int32)

    def show(self, view: Tensor) -> None:
        elements = torch.zeros(self.size // view.element_size(), dtype=torch.bool)
        sizes = [size if stride else min(size, 1) for size, stride in zip(view.shape, view.stride(), strict=True)]
        elements.as_strided(sizes, view.stride(), view.storage_offset()).fill_(True)
        self.shown[: len(elements) * view.element_size()] |= np.repeat(elements.numpy(), view.element_size())


class Launch:
    """The memory of a launch, by the arguments on the host."""

    def __init__(self, kernel: str, arguments: list[Any]):
        self.kernel = kernel
        blocks: dict[int, Block] = {}
        for view in arguments:
            if isinstance(view, Tensor) and view.untyped_storage().nbytes():
                storage = view.untyped_storage()
                if storage.data_ptr() not in blocks:
                    blocks[storage.data_ptr()] = Block(storage)
                blocks[storage.data_ptr()].show(view)
        self.blocks = [blocks[start] for start in sorted(blocks)]
        self.starts = np.array([block.start for block in self.blocks], np.int64)

    def block_of(self, address: NDArray, size: int) -> NDArray:
        """Return the number of the block that holds each value, -1 for a value that none holds."""
        if not self.blocks:
            return np.full(len(address), -1)
        number = np.searchsorted(self.starts, address, side="right") - 1
        end = np.array([block.start + block.size for block in self.blocks], np.int64)[np.maximum(number, 0)]
        return np.where((number >= 0) & (address + size <= end), number, -1)


class Fence:
    """The faults of all launches inside `fenced`, and the launches by kernel."""

    def __init__(self) -> None:
        self.faults: Counter[Fault] = Counter()
        self.launches: Counter[str] = Counter()
        self.values = 0
        self.launch: Launch | None = None

    def report(self) -> str:
        lines = [
            f"{fault.kind}: {fault.kernel}: {fault.access}: {count}" for fault, count in sorted(self.faults.items())
        ]
        return "\n".join(lines or ["no fault"])

    def enter(self, kernel: str, arguments: list[Any]) -> None:
        self.launch = Launch(kernel, arguments)
        self.launches[kernel] += 1

    def note(self, kind: str, access: str, wrong: NDArray) -> None:
        if wrong.any():
            self.faults[Fault(kind, self.launch.kernel, access)] += int(wrong.sum())

    def placed(self, address: NDArray, size: int, access: str) -> Iterator[tuple[Block, NDArray, NDArray]]:
        """Yield each block, which of the values lie in it, and their bytes [n, size]; note the values that lie wrong."""
        self.values += len(address)
        number = self.launch.block_of(address, size)
        self.note("outside", access, number < 0)
        for index in np.unique(number[number >= 0]):
            block, here = self.launch.blocks[index], number == index
            place = (address[here] - block.start)[:, None] + np.arange(size)
            self.note("beyond", access, ~block.shown[place].all(1))
            yield block, here, place

    def load(self, address: NDArray, dtype: np.dtype) -> NDArray:
        """Check a load of values; return which of them may be read."""
        allowed, program, access = np.zeros(len(address), bool), _program(), f"load of {dtype}"
        for block, here, place in self.placed(address, dtype.itemsize, access):
            allowed |= here
            writer, reader = block.writer[place], block.reader[place]
            self.note("torn", f"{access} that another program stores", ((writer != 0) & (writer != program)).any(1))
            self.note("unset", access, (block.bytes[place] == _MARK).all(1))
            block.reader[place] = np.where((reader == 0) | (reader == program), program, _MANY)
        return allowed

    def store(self, address: NDArray, value: NDArray) -> NDArray:
        """Check a store of values; return which of them may be written."""
        allowed, program, access = np.zeros(len(address), bool), _program(), f"store of {value.dtype}"
        new = np.ascontiguousarray(value).view(np.uint8).reshape(len(value), value.dtype.itemsize)
        for block, here, place in self.placed(address, value.dtype.itemsize, access):
            allowed |= here
            writer, reader = block.writer[place], block.reader[place]
            self.note("torn", f"{access} that another program reads", ((reader != 0) & (reader != program)).any(1))
            other = (writer != 0) & (writer != program) & (block.bytes[place] != new[here])
            self.note("torn", f"{access} of another value than another program's", other.any(1))
            if len(np.unique(place[:, 0])) < len(place):
                last = block.bytes.copy()
                last[place] = new[here]
                self.note("torn", f"{access} twice to one place, of two values", (last[place] != new[here]).any(1))
            block.writer[place] = program
        return allowed


class _Memory:
    """The interpreter's loads and stores behind a fence, which lets through only what lies inside."""

    def __init__(self, fence: Fence):
        self.fence = fence

    def load(self, pointers: NDArray, mask: NDArray, other: NDArray, dtype: Any) -> NDArray:
        mask = np.array(np.broadcast_to(mask, pointers.shape), bool)
        mask[mask] = self.fence.load(pointers[mask].astype(np.int64), np.dtype(dtype))
        return _MEMORY.load(pointers, mask, other, dtype)

    def store(self, pointers: NDArray, value: NDArray, mask: NDArray) -> Any:
        mask = np.array(np.broadcast_to(mask, pointers.shape), bool)
        value = np.ascontiguousarray(np.broadcast_to(value, pointers.shape))
        mask[mask] = self.fence.store(pointers[mask].astype(np.int64), value[mask])
        return _MEMORY.store(pointers, value, mask)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"expected kernels of loads and stores, got {name}, which the fence does not check")


class _Marked(TorchFunctionMode):
    """Fills new memory with the mark."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _NEW and isinstance(result, Tensor) and result.is_cpu:
            result.untyped_storage().fill_(_MARK)
        return result


def _program() -> int:
    """Return the number of the program that runs, from 1."""
    (x, y, z), (width, height, _) = interpreter.interpreter_builder.grid_idx, interpreter.interpreter_builder.grid_dim
    return 1 + x + width * (y + height * z)


@contextmanager
def fenced() -> Iterator[Fence]:
    """Check every launch of the block, and none of the blocks around it."""
    fence = Fence()

    def arguments(executor: Any, args: Any, kwargs: Any) -> Any:
        on_host, named = _ARGUMENTS(executor, args, kwargs)
        fence.enter(executor.fn.__name__, [*on_host, *named.values()])
        return on_host, named

    with (
        patch.object(interpreter, "_interpreter", _Memory(fence)),
        patch.object(interpreter.GridExecutor, "_init_args_hst", arguments),
        _Marked(),
    ):
        yield fence

"""Rounds that run without the host: proven to be repeatable, captured as CUDA graphs, and read back asynchronously.

A graph repeats kernels, addresses and the host's numbers as they were. So the tensors of a round lie at fixed addresses, no
step may depend on what the host reads of a tensor, and two calls must be the same steps over the same shapes and numbers.
`check_capturable` asks that of the function itself, whatever model it runs. A CPU runs the same function without a graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class CaptureRefused(ValueError):
    """A request that no captured round serves; the message says what was expected and what came."""


class FixedTensors:
    """Attributes of some objects that hold tensors. A graph that was recorded reads and writes the memory these had then, so
    every round has to leave them where it found them."""

    def __init__(self) -> None:
        self._kept: list[tuple[object, str, Tensor]] = []

    def keep(self, owner: object, *names: str) -> None:
        """These attributes stay at the addresses that they have now."""
        self._kept += [(owner, name, getattr(owner, name)) for name in names]

    def settle(self) -> None:
        """Copies what has taken their places into them.   Raises CaptureRefused for another shape or dtype."""
        changed = [(*one, getattr(one[0], one[1])) for one in self._kept]
        changed = [(owner, name, home, new) for owner, name, home, new in changed if new is not home]
        homes = {home.untyped_storage().data_ptr() for _, _, home in self._kept}
        fresh = []
        for _, name, home, new in changed:
            if new.shape != home.shape or new.dtype != home.dtype:
                raise CaptureRefused(f"expected a round that leaves {name} as {list(home.shape)} of {home.dtype}, got "
                              f"{list(new.shape)} of {new.dtype}")  # fmt: skip
            # one that lies in the memory of another would be overwritten before it is read
            fresh.append(new.clone() if new.untyped_storage().data_ptr() in homes else new)
        for (owner, name, home, _), new in zip(changed, fresh, strict=True):
            home.copy_(new)
            setattr(owner, name, home)


# operators whose outcome the host has to know before it can go on
_HOST_OPERATORS = frozenset(
    "_local_scalar_dense nonzero nonzero_numpy masked_select equal allclose is_nonzero item unique_dim _unique _unique2 "
    "unique_consecutive unique_dim_consecutive bincount histc argwhere".split()
)
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
# what of Python reads a tensor past the dispatcher
_HOST_METHODS = frozenset(
    ("tolist", "numpy", "__array__", "cpu", "__bool__", "__int__", "__float__", "__index__", "item")
)
_HOST_NUMBERS = "expected a round without numbers of the host, got a tensor made of some"


class HostReadError(CaptureRefused):
    """A step that the host has a part in."""


class OperationRecorder(TorchDispatchMode):
    """Refuses steps that the host has a part in and writes the others down.

    steps: name of each, shapes and dtypes of its tensors, and its numbers.

    `x[:, 1:] = 0` makes a tensor of the number, which fills the slice. That is a number of the kernel, as long as nothing but
    the filling takes it; it stands among the steps with its value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple] = []
        self.numbers: list[Tensor] = []  # held, so that no other tensor gets their identity

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        parts = tree_flatten((args, kwargs))[0]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if name in _HOST_OPERATORS or (name == "repeat_interleave" and "output_size" not in kwargs):
            raise HostReadError(f"expected a round that asks nothing of the device, got {name}")
        if name in _INDEXING and _is_boolean_index(args[1]):
            raise HostReadError("expected a round that asks nothing of the device, got an index of booleans")
        if name == "lift_fresh":
            return self._number(func(*args, **kwargs))
        if name != "fill_" and any(part is number for part in tensors for number in self.numbers):
            raise HostReadError(_HOST_NUMBERS)
        made = func(*args, **kwargs)
        there = [part.device for part in tree_flatten(made)[0] if isinstance(part, Tensor)]
        if any(one.device.type != "cpu" and one.dim() for one in tensors) and any(d.type == "cpu" for d in there):
            raise HostReadError(f"expected a round that stays on its device, got {name} to the host")
        self.steps.append((name, tuple(map(_description, parts))))
        return made

    def _number(self, made: Tensor) -> Tensor:
        """A tensor that Python has just made of numbers.   Raises HostReadError where there are several."""
        if made.dim() or made.device.type != "cpu":
            raise HostReadError(_HOST_NUMBERS)
        self.numbers.append(made)
        self.steps.append(("number", repr(torch.ops.aten._local_scalar_dense(made))))
        return made


class _HostReadGuard(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(func, "__name__", "") in _HOST_METHODS:
            raise HostReadError(f"expected a round that asks nothing of the device, got {func.__name__}")
        return func(*args, **(kwargs or {}))


def recorded_operations(function: Callable[[], None]) -> list[tuple]:
    """What a call does, step by step.   Raises HostReadError."""
    with _HostReadGuard(), OperationRecorder() as watched:
        function()
    return watched.steps


def check_capturable(function: Callable[[], None]) -> None:
    """Raise CaptureRefused for a function that cannot be replayed. It runs three times: nothing it changes may matter yet."""
    function()  # constants are made once, and may be asked for their values then
    first, second = recorded_operations(function), recorded_operations(function)
    if first != second:
        n = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
        raise CaptureRefused(
            f"expected rounds of the same steps, got {len(first)} and then {len(second)} that differ from {n} on"
        )


def _is_boolean_index(indices: Any) -> bool:
    """Whether an index takes what is True, of which somebody has to know how much there is."""
    return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in tree_flatten(indices)[0])


def _description(part: Any) -> Any:
    return (tuple(part.shape), part.dtype) if isinstance(part, Tensor) else repr(part)


_WARM_UP = 2  # runs before a graph is recorded: libraries allocate their workspaces, caches of constants fill


def capture(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """What does to memory what `function` does.

    function: shapes, addresses and the host's numbers are the same at every call, and it asks nothing of the device. On a GPU
    it runs while this is called, so nothing it changes may matter yet.   Raises CaptureRefused where CUDA cannot record it.
    """
    if device.type != "cuda":
        return function
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            function()
    except RuntimeError as error:
        told = " ".join(str(error).split())[:200]
        raise CaptureRefused(
            f"expected a round that a CUDA graph can record, got {type(error).__name__} ({told})"
        ) from error
    return graph.replay


class AsyncReadback:
    """Copies of a small tensor in the order of the rounds that wrote it.

    late: how many of the latest stay unread. On a CPU 0: reading costs nothing there, and a round too many would.
    """

    def __init__(self, device: torch.device, late: int | None = None):
        self.cuda = device.type == "cuda"
        self.late = int(self.cuda) if late is None else late
        self._pending: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._spare: list[Tensor] = []

    def __len__(self) -> int:
        """The number of copies that are under way."""
        return len(self._pending)

    def post(self, tensor: Tensor) -> None:
        """Copy what the tensor holds at the end of the round, behind it on its stream."""
        copy = self._spare.pop() if self._spare else torch.empty_like(tensor, device="cpu", pin_memory=self.cuda)
        copy.copy_(tensor, non_blocking=self.cuda)
        event = None
        if self.cuda:
            event = torch.cuda.Event()
            event.record()
        self._pending.append((copy, event))

    def read(self) -> list[list[int]] | None:
        """The oldest copy, unless only the latest are under way."""
        if len(self._pending) <= self.late:
            return None
        copy, event = self._pending.popleft()
        if event is not None:
            event.synchronize()
        self._spare.append(copy)
        return copy.tolist()

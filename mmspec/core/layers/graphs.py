"""Rounds without the host: checked to be repeatable, captured as CUDA graphs, and read back asynchronously. A graph
repeats kernels, addresses and host numbers unchanged. So tensors stay at fixed addresses, no step may depend on a host
read, and two calls must run the same steps over the same shapes and numbers. A CPU runs the same function without a
graph."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from mmspec.kernels.dispatch import launches_shown


class CaptureRefused(ValueError):
    """A request that cannot be captured; the message states the expectation and the actual round."""


class FixedTensors:
    """Attributes that hold tensors at fixed addresses, where every round has to leave its results for a recorded graph."""

    def __init__(self) -> None:
        self._kept: list[tuple[object, str, Tensor]] = []

    def keep(self, owner: object, *names: str) -> None:
        self._kept += [(owner, name, getattr(owner, name)) for name in names]

    def copy_back(self) -> None:
        """Copy the tensors that replaced the fixed tensors back into them."""
        changed = [(owner, name, home, getattr(owner, name)) for owner, name, home in self._kept]
        changed = [(owner, name, home, new) for owner, name, home, new in changed if new is not home]
        homes = {home.untyped_storage().data_ptr() for _, _, home in self._kept}
        fresh = []
        for _, name, home, new in changed:
            if new.shape != home.shape or new.dtype != home.dtype:
                raise CaptureRefused(
                    f"expected a round that leaves {name} as {list(home.shape)} of {home.dtype}, got "
                    f"{list(new.shape)} of {new.dtype}"
                )
            # a tensor in the memory of a fixed tensor would be overwritten before it is read
            fresh.append(new.clone() if new.untyped_storage().data_ptr() in homes else new)
        for (owner, name, home, _), new in zip(changed, fresh, strict=True):
            home.copy_(new)
            setattr(owner, name, home)


# operators whose output shape or value the host has to read
_HOST_OPERATORS = frozenset(
    "_local_scalar_dense nonzero nonzero_numpy masked_select equal allclose is_nonzero item unique_dim _unique _unique2 "
    "unique_consecutive unique_dim_consecutive bincount histc argwhere".split()
)
_INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
# methods that read a tensor without the dispatcher
_HOST_METHODS = frozenset(
    ("tolist", "numpy", "__array__", "cpu", "__bool__", "__int__", "__float__", "__index__", "item")
)
_ATTENTION = "_scaled_dot_product"
_HOST_NUMBERS = "expected a round without tensors made of Python numbers, got such a tensor"


class HostReadError(CaptureRefused):
    """A step in which the host takes part."""


class OperationRecorder(TorchDispatchMode):
    """Records the steps of a function (names, shapes, dtypes, numbers), and refuses steps in which the host takes part.
    `x[:, 1:] = 0` makes a tensor of the number, which fills the slice. The kernel contains this number as long as only
    the fill reads it, so it is recorded as a step with its value."""

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
            raise HostReadError(f"expected a round without host reads, got {name}")
        if name in _INDEXING and _is_boolean_index(args[1]):
            raise HostReadError("expected a round without host reads, got an index of booleans")
        if name == "lift_fresh":
            return self._number(func(*args, **kwargs))
        if name != "fill_" and any(part is number for part in tensors for number in self.numbers):
            raise HostReadError(_HOST_NUMBERS)
        output = func(*args, **kwargs)
        results = tree_flatten(output)[0]
        if name.startswith(_ATTENTION):
            results = results[:1]  # the seeds of a dropout that is not used lie on the host outside a capture
        devices = [part.device for part in results if isinstance(part, Tensor)]
        if any(x.device.type != "cpu" and x.dim() for x in tensors) and any(d.type == "cpu" for d in devices):
            raise HostReadError(f"expected a round that stays on its device, got {name} to the host")
        on_device = any(x.device.type != "cpu" for x in tensors)
        self.steps.append((name, tuple(_description(part, on_device) for part in parts)))
        return output

    def _number(self, tensor: Tensor) -> Tensor:
        """Record a tensor that Python has just made of a number; refuse several numbers."""
        if tensor.dim() or tensor.device.type != "cpu":
            raise HostReadError(_HOST_NUMBERS)
        self.numbers.append(tensor)
        self.steps.append(("number", repr(torch.ops.aten._local_scalar_dense(tensor))))
        return tensor


class _HostReadGuard(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(func, "__name__", "") in _HOST_METHODS:
            raise HostReadError(f"expected a round without host reads, got {func.__name__}")
        return func(*args, **(kwargs or {}))


def recorded_operations(function: Callable[[], None]) -> list[tuple]:
    with _HostReadGuard(), OperationRecorder() as recorder:
        function()
    return recorder.steps


def check_capturable(function: Callable[[], None]) -> None:
    """Refuse a function that cannot be replayed. It runs three times, so nothing that it changes may matter yet."""
    function()  # constants are made in the first call, which may read them
    first, second = recorded_operations(function), recorded_operations(function)
    if first != second:
        n = next((n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
        raise CaptureRefused(
            f"expected rounds of the same steps, got {len(first)} and then {len(second)} that differ from {n} on"
        )


def _is_boolean_index(indices: Any) -> bool:
    """Return whether an index is a mask, whose number of True entries the host has to read."""
    return any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in tree_flatten(indices)[0]
    )


def _description(part: Any, on_device: bool) -> Any:
    """The properties of an argument that a graph freezes. A step on a device takes a scalar of the host as a number."""
    if not isinstance(part, Tensor):
        return repr(part)
    number = part if on_device and part.device.type == "cpu" and not part.dim() else None
    value = "" if number is None else repr(torch.ops.aten._local_scalar_dense(number))
    return tuple(part.shape), part.dtype, value


class _StorageRecorder(TorchDispatchMode):
    """Notes the storages that a function uses and did not make, by the identity of torch's own object."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: dict[int, torch.UntypedStorage] = {}
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ != "lift_fresh":  # of a number that Python has just made
            self.use((args, kwargs))
        output = func(*args, **kwargs)
        self._own.update(storage._cdata for storage in _storages(output) if storage._cdata not in self.outside)
        return output

    def use(self, arguments: Any) -> None:
        for storage in _storages(arguments):
            if storage._cdata not in self._own:
                self.outside[storage._cdata] = storage


def _storages(values: Any) -> Iterator[torch.UntypedStorage]:
    for value in tree_flatten(values)[0]:
        if isinstance(value, Tensor) and value.layout is torch.strided:
            yield value.untyped_storage()


def outside_storages(function: Callable[[], None], apart: Iterable[Tensor] = ()) -> list[torch.UntypedStorage]:
    """Run a function and return the storages that it or its kernels use and did not make, except those of `apart`, such
    as weights, which may move. Whoever replays a graph holds them, so that nobody else gets their memory."""
    left_out = {storage._cdata for tensor in apart for storage in _storages(tensor)}
    with _StorageRecorder() as recorder, launches_shown(recorder.use):
        function()
    return [storage for number, storage in recorder.outside.items() if number not in left_out]


_WARM_UP = 2  # runs before a graph is recorded, in which libraries plan and caches of constants fill
_RECORDING = Lock()  # held while a graph is recorded, and while graphs are destroyed
_STREAMS: dict[torch.device, torch.cuda.Stream] = {}  # torch's own streams are a ring of 32, which other code uses too
_ENDED: deque[torch.cuda.CUDAGraph] = deque()  # graphs that nobody replays any more


class RecordedGraph:
    """A recorded graph, replayed by a call. It is destroyed while no thread records, which that would break."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()

    def __call__(self) -> None:
        self.graph.replay()

    def __del__(self) -> None:
        _ENDED.append(self.graph)
        _destroy_ended()


def _destroy_ended() -> None:
    """Destroy the graphs that nobody replays; while a thread records, that thread does so afterwards."""
    # a finaliser never waits: it may run inside any code, even a recording; a graph may end while another is destroyed
    while _ENDED and _RECORDING.acquire(blocking=False):
        try:
            _ENDED.clear()
        finally:
            _RECORDING.release()


def _clear_workspaces() -> None:
    """Empty torch's map of cuBLAS workspaces, as torch's own graphs do; refuse a torch without a function for it."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        raise CaptureRefused(f"expected a torch that can clear the workspaces of cuBLAS, got {torch.__version__}")
    clear()


def capture(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return a callable with the effect of `function` on memory: a graph's replay on a GPU, `function` elsewhere. Every
    call has the same shapes, addresses and host numbers, and reads nothing from the device. On a GPU it runs during
    this call, so nothing that it changes may matter yet."""
    if device.type != "cuda":
        return function
    try:
        with _RECORDING:
            return _recorded_graph(function, device)
    finally:
        _destroy_ended()


def _recorded_graph(function: Callable[[], None], device: torch.device) -> RecordedGraph:
    """Record a graph whose matrix products use a workspace in the graph's own memory. torch keeps a workspace for every
    stream until somebody clears the map of them, as Inductor's graphs do, and the destruction of a graph from torch
    2.14 on. A graph would write to the freed memory. So the map is empty before the recording, and cleared again so
    that nobody shares it."""
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    stream = _STREAMS[device]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)
    recorded = RecordedGraph()
    torch.cuda.synchronize(device)
    _clear_workspaces()
    try:
        # other threads may allocate meanwhile
        with without_collection(), torch.cuda.graph(recorded.graph, stream=stream, capture_error_mode="thread_local"):
            function()
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise CaptureRefused(
            f"expected a round that a CUDA graph can record, got {type(error).__name__} ({reason})"
        ) from error
    finally:
        _clear_workspaces()
    return recorded


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause Python's garbage collector, which could destroy another graph or module and so break a recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class AsyncReadback:
    """Host copies of a small tensor, in the order of the rounds that wrote it. The `late` latest copies stay unread, by
    default 1 on a GPU. On a CPU 0: reading is free there, and a round too many would not be."""

    def __init__(self, device: torch.device, late: int | None = None):
        self.cuda = device.type == "cuda"
        self.late = int(self.cuda) if late is None else late
        self._pending: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()
        self._spare: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._pending)

    def post(self, tensor: Tensor) -> None:
        copy = self._spare.pop() if self._spare else torch.empty_like(tensor, device="cpu", pin_memory=self.cuda)
        copy.copy_(tensor, non_blocking=self.cuda)
        event = None
        if self.cuda:
            event = torch.cuda.Event()
            event.record()
        self._pending.append((copy, event))

    def read(self) -> list[list[int]] | None:
        """The oldest copy, or None if only the latest are in flight."""
        if len(self._pending) <= self.late:
            return None
        copy, event = self._pending.popleft()
        if event is not None:
            event.synchronize()
        self._spare.append(copy)
        return copy.tolist()

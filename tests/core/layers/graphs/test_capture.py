"""Recordings own their memory: the order of calls on a GPU that is not there, and the storages that a function uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy
import pytest
import torch
from torch import Tensor

from mmspec.core.layers import graphs
from mmspec.core.layers.graphs import CaptureRefused, capture, check_capturable, outside_storages
from mmspec.kernels.dispatch import show_launch

GPU = torch.device("cuda", 0)
RECORDING = ["synchronize", "clear", "begin thread_local on stream 1", "run", "end", "clear"]


class Cuda:
    """A GPU that notes the calls."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.calls: list[str] = []
        self.streams = 0
        for name in ("Stream", "current_stream", "stream", "synchronize", "CUDAGraph", "graph"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: self.calls.append("clear"), raising=False)
        patch.setattr(graphs, "_STREAMS", {})

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802
        self.streams += 1
        return Stream(self, self.streams)

    def current_stream(self, device: torch.device) -> Stream:
        return Stream(self, 0)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.calls.append(f"enter stream {stream.number}")
        yield
        self.calls.append(f"leave stream {stream.number}")

    def synchronize(self, device: torch.device) -> None:
        self.calls.append("synchronize")

    def CUDAGraph(self) -> Graph:  # noqa: N802
        return Graph(self)

    @contextmanager
    def graph(self, graph: Graph, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        self.calls.append(f"begin {capture_error_mode} on stream {stream.number}")
        try:
            yield
        finally:
            self.calls.append("end")


class Stream:
    def __init__(self, cuda: Cuda, number: int):
        self.cuda, self.number = cuda, number

    def wait_stream(self, other: Stream) -> None:
        self.cuda.calls.append(f"stream {self.number} waits for stream {other.number}")


class Graph:
    def __init__(self, cuda: Cuda):
        self.cuda = cuda

    def replay(self) -> None:
        self.cuda.calls.append("replay")

    def __del__(self) -> None:
        self.cuda.calls.append("destroyed")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    yield Cuda(monkeypatch)
    assert not graphs._RECORDING.locked() and not graphs._ENDED


def test_a_recording_has_a_workspace_of_its_own(cuda: Cuda) -> None:
    replay = capture(lambda: cuda.calls.append("run"), GPU)
    assert cuda.calls == [
        "stream 1 waits for stream 0",
        "enter stream 1",
        "run",
        "run",
        "leave stream 1",
        "stream 0 waits for stream 1",
        *RECORDING,
    ]
    cuda.calls.clear()
    replay()
    assert cuda.calls == ["replay"]


def test_a_failed_recording_is_cleared_too(cuda: Cuda) -> None:
    def fails() -> None:
        cuda.calls.append("run")
        if cuda.calls.count("run") == 3:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(CaptureRefused, match="CUDA graph can record, got RuntimeError"):
        capture(fails, GPU)
    calls = [call for call in cuda.calls if call != "destroyed"]
    assert calls[-len(RECORDING) :] == RECORDING
    capture(lambda: None, GPU)


def test_recordings_share_a_stream_of_their_own(cuda: Cuda) -> None:
    for device in (GPU, GPU, torch.device("cuda", 1), GPU):
        capture(lambda: None, device)
    assert cuda.streams == 2
    assert [call for call in cuda.calls if call.startswith("begin")] == [
        f"begin thread_local on stream {number}" for number in (1, 1, 2, 1)
    ]


def test_a_torch_without_the_function_is_refused(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces")
    with pytest.raises(CaptureRefused, match="workspaces of cuBLAS"):
        capture(lambda: None, GPU)
    assert not any(call.startswith("begin") for call in cuda.calls)


@pytest.mark.parametrize("elsewhere", (False, True), ids=("in its thread", "in another thread"))
def test_no_graph_is_destroyed_during_a_recording(cuda: Cuda, elsewhere: bool) -> None:
    old = [capture(lambda: None, GPU)]

    def drops() -> None:
        if elsewhere:
            thread = threading.Thread(target=old.clear)
            thread.start()
            thread.join()
        else:
            old.clear()

    cuda.calls.clear()
    replay = capture(drops, GPU)
    assert cuda.calls.count("destroyed") == 1 and cuda.calls.index("destroyed") > cuda.calls.index("end")
    del replay
    assert cuda.calls.count("destroyed") == 2


def test_threads_record_one_after_the_other(cuda: Cuda) -> None:
    inside, most = [], []

    def notes() -> None:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.01)
        inside.pop()

    threads = [threading.Thread(target=capture, args=(notes, GPU)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(most) == 12


TABLE, HOME, WEIGHT = torch.arange(4.0), torch.zeros(4), torch.ones(4)


def through_a_view() -> None:
    HOME[1:].copy_(TABLE[1:] * 2)


def through_a_kernel() -> None:
    show_launch((TABLE, HOME + 1, 3))
    HOME.zero_()


def made_inside() -> None:
    made = torch.zeros(4)
    made[1:] = 7
    HOME.copy_(made.view(2, 2).T.reshape(4))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (through_a_view, (TABLE, HOME)),
        (through_a_kernel, (TABLE, HOME)),
        (made_inside, (HOME,)),
        (lambda: HOME.add_(WEIGHT), (HOME,)),
        (lambda: HOME.add_(1) if HOME.is_cuda else None, ()),
    ],
)
def test_storages_from_outside_are_those_that_a_function_uses(
    function: Callable[[], None], expected: tuple[Tensor, ...]
) -> None:
    found = {storage.data_ptr() for storage in outside_storages(function, [WEIGHT])}
    assert found == {tensor.data_ptr() for tensor in expected}


def test_a_number_of_the_host_that_changes_is_refused() -> None:
    """A graph freezes the value of a tensor on the host; the meta device stands for a GPU."""
    on_device, number = torch.ones(4, device="meta"), torch.tensor(1.0)
    check_capturable(lambda: on_device.add_(number))

    array = numpy.zeros(())
    shared = torch.from_numpy(array)

    def counts() -> None:
        array[()] += 1
        on_device.add_(shared)

    with pytest.raises(CaptureRefused, match="same steps"):
        check_capturable(counts)

    def adds() -> None:
        number.add_(1)
        on_device.add_(number)

    with pytest.raises(CaptureRefused, match="same steps"):
        check_capturable(adds)

"""A function over tensors at fixed addresses as something to replay: a CUDA graph on a GPU, the function itself on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmspec.core.graphs.static import Refused

_WARM_UP = 2  # runs before a graph is recorded: libraries allocate their workspaces, caches of constants fill


def replayed(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """What does to memory what `function` does.

    function: shapes, addresses and the host's numbers are the same at every call, and it asks nothing of the device. On a GPU
    it runs while this is called, so nothing it changes may matter yet.   Raises Refused where CUDA cannot record it.
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
        raise Refused(f"expected a round that a CUDA graph can record, got {type(error).__name__} ({told})") from error
    return graph.replay

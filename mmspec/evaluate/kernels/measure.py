"""Timing of one case: paired runs, medians; on a GPU by its own clock, with launches counted by the profiler."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from mmspec.kernels.backend import on_kernels, triton_at_hand

_WARM = 3
_GIGABYTE = 1 << 30


def paired(
    ours: Callable[[], object], plain: Callable[[], object], device: torch.device, repeats: int
) -> tuple[float, ...]:
    """(median seconds of ours, of plain, median of their paired ratios plain / ours)."""
    for run in (ours, plain) * _WARM:
        run()
    pairs = [(seconds(ours, device), seconds(plain, device)) for _ in range(repeats)]
    return (*(median(column) for column in zip(*pairs, strict=True)), median(b / a for a, b in pairs))


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        started = perf_counter()
        run()
        return perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def launches(run: Callable[[], object], device: torch.device) -> int | None:
    """Kernels that one run launches: all of them on a GPU, ours under the interpreter, None where nothing is launched."""
    if device.type == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        return sum(event.count for event in profile.key_averages() if event.device_type.name == "CUDA")
    if not (on_kernels(torch.empty(0, device=device)) and triton_at_hand()):
        return None
    from mmspec.kernels.gpu.launch import launched

    before = launched()
    run()
    return launched() - before


def copy_bandwidth(device: torch.device) -> float | None:
    """Bytes a second that a large copy reads and writes on this GPU; None elsewhere."""
    if device.type != "cuda":
        return None
    source = torch.zeros(_GIGABYTE, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    for _ in range(_WARM):
        target.copy_(source)
    return 2 * _GIGABYTE / median(seconds(lambda: target.copy_(source), device) for _ in range(10))

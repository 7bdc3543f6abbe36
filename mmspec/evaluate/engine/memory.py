"""The peak memory of a request beyond that of the model, on the GPU or of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from mmspec.io.files import writing
from mmspec.io.readers import read_text

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Yield a list that holds, after the block, the bytes by which memory rose above its level before the block.

    On CUDA devices the allocator counts. Elsewhere Linux counts the resident pages of the process. Free memory inside
    the process is handed back first: otherwise a request would reuse the memory of the request before. The list stays
    empty on systems that count neither.
    """
    peak: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.append(torch.cuda.max_memory_allocated(device) - before)
        return
    before = _start()
    yield peak
    if before is not None:
        peak.append(max(_resident("VmHWM") - before, 0))


def _start() -> int | None:
    """Reset the peak and return the resident bytes now; None where the system does not support it."""
    trim = _trim()
    if trim is not None:
        trim(0)
    try:
        with writing(_RESET):
            _RESET.write_text(_RESET_PEAK)
    except OSError:
        return None
    return _resident("VmRSS")


def _resident(field: str) -> int:
    """Return a field of the process's status in bytes."""
    for line in read_text(_STATUS).splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{_STATUS}: expected a line {field}, got none; the system does not count resident memory")


@cache
def _trim() -> object | None:
    """Return the C library's function that hands free memory back; None if it has none."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):
        return None

"""Timing on a device: paired calls, launches, bandwidth, and decodings compared on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch

from mmspec.core.layers.graphs import CaptureRefused, capture
from mmspec.evaluate.engine.rows import timed_row
from mmspec.evaluate.engine.runs import Runner, interleave
from mmspec.evaluate.engine.suite import Method
from mmspec.kernels.dispatch import has_triton, on_kernels

_WARM = 3
_REPLAYS = 10  # replays of a graph that are timed together, since a single replay is shorter than an event
_GIGABYTE = 1 << 30


def paired(
    ours: Callable[[], object], plain: Callable[[], object], device: torch.device, repeats: int
) -> tuple[float, ...]:
    """Return the median seconds of ours and of plain, and the median of their paired ratios plain / ours."""
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


def graph_seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float | None:
    """Return the median seconds of a run as a CUDA graph, without the host; None on a CPU and where it cannot be
    captured."""
    if device.type != "cuda":
        return None
    try:
        replay = capture(run, device)
    except (CaptureRefused, RuntimeError):
        return None

    def several() -> None:
        for _ in range(_REPLAYS):
            replay()

    several()
    return median(seconds(several, device) for _ in range(repeats)) / _REPLAYS


def launches(run: Callable[[], object], device: torch.device) -> int | None:
    """Return the kernels that a run launches: all on a GPU, ours under the interpreter, None without launches."""
    if device.type == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        return sum(event.count for event in profile.key_averages() if event.device_type.name == "CUDA")
    if not (on_kernels(torch.empty(0, device=device)) and has_triton()):
        return None
    from mmspec.kernels.gpu.launch import launch_count

    before = launch_count()
    run()
    return launch_count() - before


def copy_bandwidth(device: torch.device) -> float | None:
    """Return the bytes per second that a large copy reads and writes on this GPU; None elsewhere."""
    if device.type != "cuda":
        return None
    source = torch.zeros(_GIGABYTE, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    for _ in range(_WARM):
        target.copy_(source)
    return 2 * _GIGABYTE / median(seconds(lambda: target.copy_(source), device) for _ in range(10))


_SECONDS = ("seconds", "draft_ms", "target_ms", "verify_ms", "other_ms", "prefill_ms")


def comparison_rows(
    runners: Mapping[str, Runner],
    cases: Sequence[Any],
    baselines: Mapping[str, str],
    shared: dict,
    device: torch.device,
) -> list[dict]:
    """Return a row per runner as in benches; a failure becomes a reason. Times are None without a GPU. `baselines` are
    runners by their name in row fields. All rows have the `shared` fields, including their temperature."""
    results = interleave(cases, runners)
    greedy = shared["temperature"] == 0
    rows = [timed_row(Method(name, name), results, baselines, shared, greedy) for name in runners]
    on_gpu = device.type == "cuda"
    return rows if on_gpu else [row | dict.fromkeys(_SECONDS) for row in rows]


def figures_text(row: dict, against: Mapping[str, str]) -> str:
    """Return the figures of a row in words; `against` maps the fields of ratios to the names of their baselines."""
    if row["failed"]:
        return f"failed: {row['failed']}"
    ratios = ", ".join(f"{row[field]} x {name}" for field, name in against.items() if row.get(field) is not None)
    took = "" if row["seconds"] is None else f"{1e3 * row['seconds']:.0f} ms, "
    return f"{took}{row['accept_length']} a pass; {ratios}"

"""Measurement of this machine in a few seconds: small operators, products, decoder layers and drafted rounds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F

from mmspec.estimate.counting import own_clock
from mmspec.estimate.device import HERE, Device, MeasuredProducts, MeasuredReads
from mmspec.estimate.probe_samples import (
    NUMBERS,
    PRODUCTS,
    WIDTHS,
    Sample,
    attention,
    layers_in,
    operators,
    products,
    rounds,
    stacks,
    streams,
)
from mmspec.estimate.work import Work

DTYPES = ("float32", "bfloat16", "float16")
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256)
SIZES = (32, 128, 256, 512, 1024, 2048)
STACKS = (16, 32, 64, 256)  # megabytes of the stacked layers
STACK_ROWS = (1, 4, 12, 32, 128)
SAMPLE = 1e-3  # seconds for which shorter samples are repeated
_STREAMED = (1 << 11, 1 << 15)  # bytes of the tensors of element-wise operators
_STREAMS = 3  # element-wise operators per sample
_QUERIES = 12  # rows of the timed attention
_LARGE = 1 << 13  # side of the product that gives a GPU's peak rate


@torch.no_grad()
def probe(seconds: float = 20.0, dtypes: Sequence[str] = ("float32",), device: str | None = None) -> Device:
    """Return this machine as the device `here`; `device` None is a GPU if available. Every figure is a median. The
    samples are taken in turn, three times at least, so that a busy machine slows all of them alike."""
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"--dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}, choose one of these")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected a GPU for 'cuda', got a machine without any, leave it out")
    samples: dict[Hashable, tuple[Sample, float]] = {}
    work: dict[Hashable, Work] = {}
    for some, counted in (rounds(where), stacks((0, *STACKS), STACK_ROWS, where)):
        samples |= {name: (sample, 1.0) for name, sample in some.items()}
        work |= counted
    samples |= {kind: (sample, float(count)) for kind, (sample, count) in operators(where).items()}
    samples |= {("streaming", size): (sample, 1.0) for size, sample in streams(_STREAMED, where).items()}
    sample, work["attention"] = attention(_QUERIES, where)
    samples["attention"] = (sample, 1.0)
    for dtype in dtypes:
        kind = getattr(torch, dtype)
        samples |= {(dtype, *size): (sample, 1.0) for size, sample in products(SIZES, ROWS, where, kind).items()}
        if where.type == "cuda":
            large = torch.randn(_LARGE, _LARGE, device=where).to(kind)
            samples[dtype, "large"] = (partial(F.linear, large, large), 1.0)
    return _device(_in_turn(samples, seconds, where), work, dtypes, where)


def _device(
    measured: Mapping[Hashable, float], work: Mapping[Hashable, Work], dtypes: Sequence[str], where: torch.device
) -> Device:
    tables = {
        dtype: MeasuredProducts(ROWS, SIZES, [[measured[dtype, n, rows] for rows in ROWS] for n in SIZES])
        for dtype in dtypes
    }
    best = {dtype: max(2 * rows * n * n / measured[dtype, n, rows] for n in SIZES for rows in ROWS) for dtype in dtypes}
    best |= {dtype: 2 * _LARGE**3 / measured[dtype, "large"] for dtype in dtypes if (dtype, "large") in measured}
    # inside a model both take longer because of the Python code between them
    weight = min(measured["views"] / measured["calls"], 1.0)
    slow = measured["pass"] / (work["pass"].calls + weight * work["pass"].views)
    call = slow if where.type == "cpu" else measured[dtypes[0], SIZES[0], 1]
    small, large = _STREAMED
    streaming = _STREAMS * 2 * (large - small) / max(measured["streaming", large] - measured["streaming", small], 1e-9)
    largest = ("stack", STACKS[-1], STACK_ROWS[0], WIDTHS[-1])
    bandwidth = work[largest].weight_bytes(4) / measured[largest]
    attended = work["attention"].flops / max(measured["attention"] - call, measured["attention"] / 4)
    device = Device(
        HERE,
        _title(where),
        "measured now",
        bandwidth,
        best,
        call,
        _memory(where),
        where.type == "cpu",
        tables,
        streaming=streaming,
        round=max(measured["round"] - measured["pass"], 0.0),
        view=weight * slow,
        request=max(measured["request"] - measured["pass"], 0.0),
        attention=attended,
    )
    device = replace(device, reads=_reads(measured, work, device, dtypes[0]))
    return replace(device, drafting=_drafting(measured, work, device, dtypes[0]))


def _reads(
    measured: Mapping[Hashable, float], work: Mapping[Hashable, Work], device: Device, dtype: str
) -> MeasuredReads:
    """Return the seconds of the products of decoder layers, without the other operators of a pass."""

    def seconds(size: int, rows: int, width: int) -> float:
        whole, first = (("stack", megabytes, rows, width) for megabytes in (size, 0))
        layers = layers_in(size, width) - layers_in(0, width)  # the smallest stack has the work around the layers
        elapsed, passed = measured[whole] - measured[first], work[whole] + -1 * work[first]
        others = device.seconds(replace(passed, products={}), dtype)
        return max(elapsed - others, elapsed / 10) / (PRODUCTS * layers)

    numbers = tuple(round(NUMBERS * width**2 / PRODUCTS) for width in WIDTHS)
    lines = [[tuple(seconds(size, rows, width) for width in WIDTHS) for size in STACKS] for rows in STACK_ROWS]
    return MeasuredReads(STACK_ROWS, [size * 1e6 for size in STACKS], numbers, lines)


def _drafting(measured: Mapping[Hashable, float], work: Mapping[Hashable, Work], device: Device, dtype: str) -> float:
    """Return the slowdown of an operator outside the target's pass of a drafted round, compared with plain decoding."""
    beside = measured["drafted"] - measured["verified"] - device.round
    drafted = work["drafted"] + -1 * work["verified"]
    ready = work["drafted"].weight_bytes(4)
    operators_only = Work(calls=drafted.calls, views=drafted.views)
    own = device.seconds(replace(drafted, calls=0, views=0), dtype, ready)
    return max((beside - own) / device.seconds(operators_only, dtype), 1.0)


def _in_turn(
    samples: Mapping[Hashable, tuple[Sample, float]], seconds: float, where: torch.device
) -> dict[Hashable, float]:
    """Return the median seconds per call of each sample, with the samples taken in turn."""
    timings: dict[Hashable, list[float]] = {name: [] for name in samples}
    times = {name: _repeats(sample, where) for name, (sample, _) in samples.items()}
    began, turns = perf_counter(), 0
    while turns < 3 or perf_counter() - began < seconds:
        for name, (sample, calls) in samples.items():
            timings[name].append(_timed(sample, times[name], where) / calls)
        turns += 1
    return {name: median(seconds_of) for name, seconds_of in timings.items()}


def _repeats(function: Callable[[], object], where: torch.device) -> int:
    _timed(function, 1, where)
    return max(1, int(SAMPLE / max(_timed(function, 1, where), 1e-7)))


def _timed(function: Callable[[], object], times: int, where: torch.device) -> float:
    """Return the seconds per call over `times` calls, after an untimed call that fills the caches."""
    clock = own_clock(where.type)
    function()
    if where.type == "cuda":
        torch.cuda.synchronize()
    began = clock()
    for _ in range(times):
        function()
    if where.type == "cuda":
        torch.cuda.synchronize()
    return (clock() - began) / times


def _memory(where: torch.device) -> float:
    if where.type == "cuda":
        return float(torch.cuda.get_device_properties(where).total_memory)
    import os

    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _title(where: torch.device) -> str:
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    import platform

    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"

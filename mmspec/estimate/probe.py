"""Measuring this machine in a few seconds: calls of small operators, products by their rows and sizes, and bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.loop import DecodingRun
from mmspec.estimate.counting import count_work, own_clock
from mmspec.estimate.device import HERE, Device, MeasuredProducts
from mmspec.estimate.work import Work
from mmspec.vlm.api import start

DTYPES = ("float32", "bfloat16", "float16")
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256)
SIZES = (32, 128, 256, 512, 1024, 2048)
POOLS = (1, 4, 16, 32, 64, 256)  # megabytes of weights that are read in turn
POOL_ROWS = (1, 2, 4, 12, 32, 128)
_SIDE = 512  # of those weights
SAMPLE = 1e-3  # seconds that a sample is repeated for, where it takes less
_WIDTH, _LAYERS = 32, 8  # of the stack of small operators
_STREAMED = (1 << 11, 1 << 15)  # bytes of the tensors that element-wise operators go over
_STREAMS = 3  # such operators in a sample
_BETWEEN = 2  # times that two of them stand between products that read weights in turn, as in a layer
_TOKENS = 1024  # of a request whose rounds are timed
_LARGE = 1 << 13  # the side of the product whose speed an accelerator is rated by


@torch.no_grad()
def probe(seconds: float = 20.0, dtypes: Sequence[str] = ("float32",), device: str | None = None) -> Device:
    """Measure this machine.

    Every figure is the median of samples that are taken in turn, so that a busy machine slows all of them alike.

    Args:
        seconds: Of measuring; all samples are taken three times at least.
        dtypes: Of the products.
        device: cpu or cuda; when left out, a GPU if there is any.

    Returns:
        The device called `here`.

    Raises:
        ValueError: A dtype is unknown, or the device is not there.
    """
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"--dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}, choose one of these")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected a GPU for 'cuda', got a machine without any, leave it out")
    samples: dict[Hashable, tuple[Callable[[], object], float]] = {}
    tiny, work = _stack(where)
    samples |= {name: (one, 1.0) for name, one in tiny.items()}
    samples |= {kind: (one, float(count)) for kind, (one, count) in _kinds(where).items()}
    samples |= {("streaming", size): (one, 1.0) for size, one in _streams(where).items()}
    for dtype in dtypes:
        kind = getattr(torch, dtype)
        samples |= {(dtype, n, rows): (one, 1.0) for (n, rows), one in _products(where, kind).items()}
        if where.type == "cuda":
            large = torch.randn(_LARGE, _LARGE, device=where).to(kind)
            samples[dtype, "large"] = (partial(F.linear, large, large), 1.0)
    samples |= {name: (one, 1.0) for name, one in _pools(where).items()}
    measured = _in_turn(samples, seconds, where)
    return _device(measured, dtypes, where, work)


def _device(measured: Mapping[Hashable, float], dtypes: Sequence[str], where: torch.device, work: Work) -> Device:
    """The figures as a device."""
    products = {
        dtype: MeasuredProducts(ROWS, SIZES, [[measured[dtype, n, rows] for rows in ROWS] for n in SIZES])
        for dtype in dtypes
    }
    best = {dtype: max(2 * rows * n * n / measured[dtype, n, rows] for n in SIZES for rows in ROWS) for dtype in dtypes}
    best |= {dtype: 2 * _LARGE**3 / measured[dtype, "large"] for dtype in dtypes if (dtype, "large") in measured}
    speeds = {rows: {size * 1e6: _speed(measured, size, rows) for size in POOLS} for rows in POOL_ROWS}
    # in a model both take longer, as Python stands between them
    weight = min(measured["views"] / measured["calls"], 1.0)
    slow = measured["stack"] / (work.calls + weight * work.views)
    call = slow if where.type == "cpu" else measured[dtypes[0], SIZES[0], 1]
    small, large = _STREAMED
    streaming = _STREAMS * 2 * (large - small) / max(measured["streaming", large] - measured["streaming", small], 1e-9)
    return Device(
        HERE, _title(where), "measured now", speeds[1][POOLS[-1] * 1e6], best, call, _memory(where), where.type == "cpu",
        products, speeds, streaming, max(measured["round"] - measured["stack"], 0.0), weight * slow,
        max(measured["request"] - measured["stack"], 0.0),
    )  # fmt: skip


def _speed(measured: Mapping[Hashable, float], size: int, rows: int) -> float:
    """Bytes a second of weights that products read, without the operators between them."""
    between = _count(size) * measured["between", rows]
    reading = measured["pool", size, rows]
    return size * 1e6 / max(reading - between, reading / 4)


def _count(size: int) -> int:
    """Weights of so many megabytes."""
    return max(1, round(size * 1e6 / (4 * _SIDE**2)))


def _in_turn(
    samples: Mapping[Hashable, tuple[Callable[[], object], float]], seconds: float, where: torch.device
) -> dict[Hashable, float]:
    """Median seconds of each sample over its calls, taken in turn."""
    times_by_name: dict[Hashable, list[float]] = {name: [] for name in samples}
    times = {name: _repeats(one, where) for name, (one, _) in samples.items()}
    began, turns = perf_counter(), 0
    while turns < 3 or perf_counter() - began < seconds:
        for name, (one, calls) in samples.items():
            times_by_name[name].append(_timed(one, times[name], where) / calls)
        turns += 1
    return {name: median(some) for name, some in times_by_name.items()}


def _repeats(one: Callable[[], object], where: torch.device) -> int:
    """How often a function runs in a sample."""
    _timed(one, 1, where)
    return max(1, int(SAMPLE / max(_timed(one, 1, where), 1e-7)))


def _timed(one: Callable[[], object], times: int, where: torch.device) -> float:
    clock = own_clock(where.type)
    began = clock()
    for _ in range(times):
        one()
    if where.type == "cuda":
        torch.cuda.synchronize()
    return (clock() - began) / times


def _stack(where: torch.device) -> tuple[dict[str, Callable[[], object]], Work]:
    """A tiny decoder, whose operators compute next to nothing.

    Returns:
        A pass over one token, a round of plain decoding, and the beginning of a request; and the work of that pass.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=_WIDTH, intermediate_size=2 * _WIDTH, num_hidden_layers=_LAYERS,
                         num_attention_heads=2, vocab_size=2 * _WIDTH, pad_token_id=0, eos_token_id=1)  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config).to(where).eval()
    token = torch.zeros(1, 1, dtype=torch.long, device=where)
    past = model(token, use_cache=True).past_key_values

    def step() -> object:
        output = model(token, past_key_values=past, use_cache=True)
        past.crop(-1)
        return output

    def begin() -> DecodingRun:
        run = start(model, input_ids=token, max_new_tokens=_TOKENS, do_sample=False, eos_token_id=None)
        run.step()
        return run

    running: list[DecodingRun] = []

    def round_step() -> object:
        if not running or not running[0].step():
            running[:] = [begin()]
        return running

    return {"stack": step, "round": round_step, "request": begin}, count_work(step)


def _kinds(where: torch.device) -> dict[str, tuple[Callable[[], object], int]]:
    """Small operators that compute and that only describe memory anew, and how many there are of each kind."""
    row, weight = torch.randn(1, _WIDTH, device=where), torch.randn(_WIDTH, _WIDTH, device=where)

    def compute() -> object:
        return row + row, row * 2.0, row.mean(-1), torch.cat((row, row)), F.silu(row), F.linear(row, weight)

    def describe() -> object:
        return row.view(_WIDTH), row.transpose(0, 1), row[:, 1:], row.unsqueeze(0)

    return {"calls": (compute, 6), "views": (describe, 4)}


def _streams(where: torch.device) -> dict[int, Callable[[], object]]:
    """Element-wise operators by the bytes of their tensor."""

    def go_over(block: Tensor) -> object:
        return F.silu(block), block * block, torch.cat((block,))

    return {size: partial(go_over, torch.randn(size // 4, device=where)) for size in _STREAMED}


def _products(where: torch.device, dtype: torch.dtype) -> dict[tuple[int, int], Callable[[], Tensor]]:
    products = {}
    for n in SIZES:
        weight = torch.randn(n, n, device=where).to(dtype)
        for rows in ROWS:
            products[n, rows] = partial(F.linear, torch.randn(rows, n, device=where).to(dtype), weight)
    return products


def _pools(where: torch.device) -> dict[Hashable, Callable[[], object]]:
    """Return products with many weights, read in turn, by megabytes and rows; and the operators between them, by rows."""
    weights = [torch.randn(_SIDE, _SIDE, device=where) for _ in range(_count(POOLS[-1]))]

    def between(states: Tensor, output: Tensor) -> Tensor:
        for _ in range(_BETWEEN):
            states = F.silu(output) * states
        return states

    def read(states: Tensor, count: int) -> None:
        for weight in weights[:count]:
            between(states, F.linear(states, weight))

    states = {rows: torch.randn(rows, _SIDE, device=where) for rows in POOL_ROWS}
    samples: dict[Hashable, Callable[[], object]] = {
        ("pool", size, rows): partial(read, states[rows], _count(size)) for size in POOLS for rows in POOL_ROWS
    }
    return samples | {("between", rows): partial(between, states[rows], states[rows]) for rows in POOL_ROWS}


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

"""Devices as data, and the seconds that a work takes on them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from mmspec.estimate.work import BYTES, Work

# assumed shares of the published peaks that long kernels reach; every estimate states them
BANDWIDTH_SHARE, FLOPS_SHARE = 0.8, 0.6


@dataclass(frozen=True, slots=True)
class MeasuredProducts:
    """Seconds of products of activations [rows, n] with a square weight [n, n] in a cache."""

    rows: Sequence[int]  # ascending
    sizes: Sequence[int]  # the measured n, ascending
    seconds: Sequence[Sequence[float]]  # by size, a list by number of rows

    def __call__(self, rows: float, numbers: float) -> float:
        """Return the seconds, without those of a call, of a weight of `numbers` elements (inner times columns).
        Logarithms are interpolated between the nearest sizes and rows. Beyond them, seconds rise in proportion."""
        across = [log(n * n) for n in self.sizes]
        call = self.seconds[0][0]  # the smallest product is almost pure call overhead
        lines = [_between([log(n) for n in self.rows], [log(x) for x in line], log(rows)) for line in self.seconds]
        return max(exp(_between(across, lines, log(numbers))) - call, 0.0)


@dataclass(frozen=True, slots=True)
class MeasuredReads:
    """Seconds of products whose weights are read in turn, with the other operators of a decoder between them. Those
    operators evict the weights, and the code of the product, from the fast caches. So a product inside a model takes
    longer than the same product in a loop."""

    rows: Sequence[int]  # of the activations, ascending
    ready: Sequence[float]  # bytes of all weights that are read in turn, ascending
    numbers: tuple[int, int]  # elements of the smaller and of the larger weight
    seconds: Sequence[Sequence[tuple[float, float]]]  # by rows, by bytes: (smaller, larger), without a call

    def __call__(self, rows: float, numbers: float, ready: float) -> float:
        """Return the seconds, without those of a call, of a weight of `numbers` elements (inner times columns) among
        `ready` bytes. They lie on the line through the smaller and the larger weight: a start, and a time per element.
        Beyond the largest measured rows, seconds rise in proportion."""
        sizes, widths = [log(size) for size in self.ready], [log(n) for n in self.rows]
        place, width = min(log(max(ready, 1.0)), sizes[-1]), log(rows)
        small, large = (
            exp(
                _between(
                    widths,
                    [_between(sizes, [log(pair[which]) for pair in line], place) for line in self.seconds],
                    width,
                )
            )
            for which in (0, 1)
        )
        few, many = self.numbers
        slope = max((large - small) / (many - few), 0.0)
        return max(small + (numbers - few) * slope, small * min(numbers / few, 1.0))


def _between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Interpolate linearly: constant before the first x, with slope 1 after the last."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1] + (x - xs[-1])
    above = bisect_left(xs, x)
    share = (x - xs[above - 1]) / (xs[above] - xs[above - 1])
    return ys[above - 1] + share * (ys[above] - ys[above - 1])


@dataclass(frozen=True, slots=True)
class Device:
    """A device."""

    name: str  # on the command line
    title: str  # in words
    source: str  # the origin of the figures
    bandwidth: float  # of the memory, bytes per second
    flops: Mapping[str, float]  # per second, by dtype
    call: float  # seconds from the call of a small operator to the next
    memory: float  # bytes
    waits: bool = False  # the host waits for an operator before it calls the next, as on a CPU
    products: Mapping[str, MeasuredProducts] | None = None  # by dtype; None for a device known by its data sheet
    reads: MeasuredReads | None = None  # in turn; None for a device known by its data sheet
    streaming: float = 0.0  # bytes per second of element-wise operators in a cache; 0 for the memory bandwidth
    round: float = 0.0  # seconds of a round on the host outside operators
    view: float | None = None  # seconds of an operator that only creates a view, on a CPU; None for those of a call
    request: float = 0.0  # seconds on the host at the start of a request outside operators
    attention: float = 0.0  # measured flops per second; 0 for those of products
    drafting: float = 1.0  # slowdown of a small operator there: other code and weights evict its own from caches

    def __post_init__(self) -> None:
        figures = {"bandwidth": self.bandwidth, "call": self.call, "memory": self.memory, **self.flops}
        wrong = [name for name, figure in figures.items() if not figure or not figure > 0]
        if wrong or not self.flops:
            missing = ", ".join(wrong) or "flops"
            raise ValueError(f"device {self.name!r}: expected figures above 0, got none for {missing}, state them")

    def seconds(self, work: Work, dtype: str, weights: float | None = None, *, drafting: bool = False) -> float:
        """Return the seconds that a work takes with products in `dtype`. `weights` is the bytes of all weights between
        two reads of the same weight, which decide the caches that hold them; None for the weights of the work.
        `drafting` is the part of a drafted round outside the target's pass."""
        if dtype not in self.flops:
            known = ", ".join(self.flops)
            raise ValueError(f"--dtype: expected one of {known} on {self.name}, got {dtype!r}, choose one of these")
        if drafting:
            work = replace(work, calls=self.drafting * work.calls, views=self.drafting * work.views)
        return (self._on_processor if self.waits else self._on_accelerator)(work, dtype, weights)

    def _on_accelerator(self, work: Work, dtype: str, weights: float | None) -> float:
        """Return seconds on a GPU: kernels run in sequence, and each takes its own time or that of a call."""
        share = 1.0 if self.products else BANDWIDTH_SHARE
        bandwidth, rate = share * self.bandwidth, (1.0 if self.products else FLOPS_SHARE) * self.flops[dtype]
        seconds, itemsize = 0.0, BYTES[dtype]
        for (rows, inner, columns), count in work.products.items():
            read = itemsize * (inner * columns + rows * (inner + columns)) / bandwidth
            seconds += count * max(read, 2 * rows * inner * columns / rate, self.call)
        others = work.calls - sum(work.products.values())
        return seconds + max(work.moved / bandwidth, work.flops / rate, others * self.call)

    def _on_processor(self, work: Work, dtype: str, weights: float | None) -> float:
        """Return seconds on a CPU: every operator takes a call and then its own time."""
        itemsize, products = BYTES[dtype], (self.products or {}).get(dtype)
        ready = work.weight_bytes(itemsize) if weights is None else weights
        seconds = self.call * work.calls + work.flops / (self.attention or self.flops[dtype])
        seconds += (self.call if self.view is None else self.view) * work.views
        seconds += work.moved / (self.streaming or self.bandwidth)
        for (rows, inner, columns), count in work.products.items():
            numbers = inner * columns
            computing = 2 * rows * numbers / self.flops[dtype] if products is None else products(rows, numbers)
            seconds += count * max(computing, self._reading(rows, itemsize * numbers, ready))
        return seconds

    def _reading(self, rows: float, size: float, ready: float) -> float:
        """Return the seconds of a product that reads `size` bytes of weights; reads are measured in float32."""
        return size / self.bandwidth if self.reads is None else self.reads(rows, size / BYTES["float32"], ready)


# dense figures without sparsity from the vendors' data sheets; a call is a kernel launch of eager PyTorch
_LAUNCH = 5e-6
_TERA, _GIGA = 1e12, 1e9
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(
            "h100",
            "NVIDIA H100 SXM 80 GB",
            "NVIDIA H100 Tensor Core GPU data sheet",
            3.35 * _TERA,
            {"float16": 989 * _TERA, "bfloat16": 989 * _TERA, "float32": 67 * _TERA},
            _LAUNCH,
            80 * _GIGA,
        ),
        Device(
            "a100",
            "NVIDIA A100 SXM 80 GB",
            "NVIDIA A100 Tensor Core GPU data sheet",
            2.039 * _TERA,
            {"float16": 312 * _TERA, "bfloat16": 312 * _TERA, "float32": 19.5 * _TERA},
            _LAUNCH,
            80 * _GIGA,
        ),
        Device(
            "4090",
            "NVIDIA GeForce RTX 4090",
            "NVIDIA Ada GPU architecture white paper, table of the RTX 4090",
            1.008 * _TERA,
            {"float16": 165.2 * _TERA, "bfloat16": 165.2 * _TERA, "float32": 82.6 * _TERA},
            _LAUNCH,
            24 * _GIGA,
        ),
        Device(
            "l4",
            "NVIDIA L4",
            "NVIDIA L4 Tensor Core GPU data sheet",
            0.3 * _TERA,
            {"float16": 121 * _TERA, "bfloat16": 121 * _TERA, "float32": 30.3 * _TERA},
            _LAUNCH,
            24 * _GIGA,
        ),
    )
}
HERE = "here"


def device_of(name: str) -> Device:
    if name not in DEVICES:
        raise ValueError(f"--device: expected one of {', '.join((*DEVICES, HERE))}, got {name!r}, choose one")
    return DEVICES[name]

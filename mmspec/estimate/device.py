"""Devices as data, and the seconds that a work takes on them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

from mmspec.estimate.work import BYTES, Work

# shares of the published peaks that long kernels reach; assumptions, which an estimate states
BANDWIDTH_SHARE, FLOPS_SHARE = 0.8, 0.6


@dataclass(frozen=True, slots=True)
class MeasuredProducts:
    """Seconds of products of activations [rows, n] with a square weight [n, n] that lies in a cache.

    Attributes:
        rows: The measured rows, ascending.
        sizes: The measured n, ascending.
        seconds: A line a size, a value a number of rows.
    """

    rows: Sequence[int]
    sizes: Sequence[int]
    seconds: Sequence[Sequence[float]]

    def __call__(self, rows: float, numbers: float) -> float:
        """Seconds of a product, without those of a call.

        Args:
            rows: Rows of the activations.
            numbers: Numbers of the weight, inner times columns.

        Returns:
            The interpolation between the nearest sizes and rows in logarithms; beyond them, in proportion.
        """
        across = [log(n * n) for n in self.sizes]
        call = self.seconds[0][0]  # the smallest product computes next to nothing
        lines = [_between([log(n) for n in self.rows], [log(x) for x in line], log(rows)) for line in self.seconds]
        return max(exp(_between(across, lines, log(numbers))) - call, 0.0)


@dataclass(frozen=True, slots=True)
class MeasuredReads:
    """Seconds of products whose weights are read in turn, with the other operators of a decoder between them.

    Those operators displace the weights, and the code of the product, from the fast caches, so that a product inside a
    model takes longer than the same product in a loop.

    Attributes:
        rows: The measured rows of the activations, ascending.
        ready: The measured bytes of all weights that are read in turn, ascending.
        numbers: Numbers of the smaller and of the larger measured weight.
        seconds: A line a number of rows, a pair (smaller, larger) for each number of bytes, without those of a call.
    """

    rows: Sequence[int]
    ready: Sequence[float]
    numbers: tuple[int, int]
    seconds: Sequence[Sequence[tuple[float, float]]]

    def __call__(self, rows: float, numbers: float, ready: float) -> float:
        """Seconds of a product, without those of a call.

        Args:
            rows: Rows of the activations; beyond the last measured ones, seconds rise in proportion.
            numbers: Numbers of the weight, inner times columns.
            ready: Bytes of all weights that are read in turn.

        Returns:
            The line through the smaller and the larger weight: a start, and a time for each number.
        """
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
    """The line through two neighbours; behind the last x it rises as x does, before the first it stays."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1] + (x - xs[-1])
    above = bisect_left(xs, x)
    share = (x - xs[above - 1]) / (xs[above] - xs[above - 1])
    return ys[above - 1] + share * (ys[above] - ys[above - 1])


@dataclass(frozen=True, slots=True)
class Device:
    """A device.

    Attributes:
        name: As the command line calls it.
        title: In words.
        source: Where its figures are from.
        bandwidth: Bytes a second of its memory.
        flops: Floating-point operations a second, by dtype.
        call: Seconds that a small operator takes from one call to the next.
        memory: Bytes.
        waits: Whether the host waits for an operator before it calls the next, as on a processor.
        products: Measured seconds of products, by dtype; empty for a device that is known by its data sheet.
        reads: Measured seconds of products that read their weights in turn; None for a device known by its data sheet.
        streaming: Bytes a second of operators that go over numbers once, in a cache; 0 for those of the memory.
        round: Seconds of a round on the host beside its operators.
        view: Seconds of an operator that only describes memory anew, on a processor; None for those of a call.
        request: Seconds of a request's beginning on the host beside its operators.
        attention: Measured floating-point operations a second of attention; 0 for those of products.
        drafting: How many times longer a small operator takes around the target's pass of a drafted round, where other
            Python code and other weights displace its own from the caches.
    """

    name: str
    title: str
    source: str
    bandwidth: float
    flops: Mapping[str, float]
    call: float
    memory: float
    waits: bool = False
    products: Mapping[str, MeasuredProducts] | None = None
    reads: MeasuredReads | None = None
    streaming: float = 0.0
    round: float = 0.0
    view: float | None = None
    request: float = 0.0
    attention: float = 0.0
    drafting: float = 1.0

    def __post_init__(self) -> None:
        figures = {"bandwidth": self.bandwidth, "call": self.call, "memory": self.memory, **self.flops}
        wrong = [name for name, figure in figures.items() if not figure or not figure > 0]
        if wrong or not self.flops:
            missing = ", ".join(wrong) or "flops"
            raise ValueError(f"device {self.name!r}: expected figures above 0, got none for {missing}, state them")

    def seconds(self, work: Work, dtype: str, weights: float | None = None, *, drafting: bool = False) -> float:
        """The time that a work takes.

        Args:
            work: What is computed.
            dtype: Of the products.
            weights: Bytes of the weights that lie ready between two rounds, which decides the caches that serve them; None
                for those that the work reads.
            drafting: Whether this is the part of a drafted round around the target's pass.

        Returns:
            Seconds.

        Raises:
            ValueError: For a dtype that the device has no figures of.
        """
        if dtype not in self.flops:
            known = ", ".join(self.flops)
            raise ValueError(f"--dtype: expected one of {known} on {self.name}, got {dtype!r}, choose one of these")
        if drafting:
            work = replace(work, calls=self.drafting * work.calls, views=self.drafting * work.views)
        return (self._on_processor if self.waits else self._on_accelerator)(work, dtype, weights)

    def _on_accelerator(self, work: Work, dtype: str, weights: float | None) -> float:
        """Kernels run one after another; the host calls ahead, so that each takes its own time or a call's."""
        share = 1.0 if self.products else BANDWIDTH_SHARE
        bandwidth, rate = share * self.bandwidth, (1.0 if self.products else FLOPS_SHARE) * self.flops[dtype]
        seconds, itemsize = 0.0, BYTES[dtype]
        for (rows, inner, columns), count in work.products.items():
            read = itemsize * (inner * columns + rows * (inner + columns)) / bandwidth
            seconds += count * max(read, 2 * rows * inner * columns / rate, self.call)
        others = work.calls - sum(work.products.values())
        return seconds + max(work.moved / bandwidth, work.flops / rate, others * self.call)

    def _on_processor(self, work: Work, dtype: str, weights: float | None) -> float:
        """Every operator takes a call and then its own time."""
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
        """Seconds of a product that reads `size` bytes of weights; reads are measured in float32."""
        return size / self.bandwidth if self.reads is None else self.reads(rows, size / BYTES["float32"], ready)


# dense figures, without sparsity, from the makers' data sheets; a call is what eager PyTorch needs to launch a kernel
_LAUNCH = 5e-6
_TERA, _GIGA = 1e12, 1e9
DEVICES: dict[str, Device] = {
    one.name: one
    for one in (
        Device("h100", "NVIDIA H100 SXM 80 GB", "NVIDIA H100 Tensor Core GPU data sheet", 3.35 * _TERA,
               {"float16": 989 * _TERA, "bfloat16": 989 * _TERA, "float32": 67 * _TERA}, _LAUNCH, 80 * _GIGA),
        Device("a100", "NVIDIA A100 SXM 80 GB", "NVIDIA A100 Tensor Core GPU data sheet", 2.039 * _TERA,
               {"float16": 312 * _TERA, "bfloat16": 312 * _TERA, "float32": 19.5 * _TERA}, _LAUNCH, 80 * _GIGA),
        Device("4090", "NVIDIA GeForce RTX 4090", "NVIDIA Ada GPU architecture white paper, table of the RTX 4090",
               1.008 * _TERA, {"float16": 165.2 * _TERA, "bfloat16": 165.2 * _TERA, "float32": 82.6 * _TERA}, _LAUNCH,
               24 * _GIGA),
        Device("l4", "NVIDIA L4", "NVIDIA L4 Tensor Core GPU data sheet", 0.3 * _TERA,
               {"float16": 121 * _TERA, "bfloat16": 121 * _TERA, "float32": 30.3 * _TERA}, _LAUNCH, 24 * _GIGA),
    )
}  # fmt: skip
HERE = "here"


def device_of(name: str) -> Device:
    """The device of the table called `name`.   Raises ValueError for an unknown name."""
    if name not in DEVICES:
        raise ValueError(f"--device: expected one of {', '.join((*DEVICES, HERE))}, got {name!r}, choose one")
    return DEVICES[name]

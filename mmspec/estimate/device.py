"""Devices as data, and the seconds that a work takes on them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
            rows: Of the activations.
            numbers: Of the weight, inner times columns.

        Returns:
            The interpolation between the nearest sizes and rows in logarithms; beyond them, in proportion.
        """
        across = [log(n * n) for n in self.sizes]
        call = self.seconds[0][0]  # of the smallest product, which computes next to nothing
        logarithms = [
            _between([log(n) for n in self.rows], [log(one) for one in line], log(rows)) for line in self.seconds
        ]
        return max(exp(_between(across, logarithms, log(numbers))) - call, 0.0)


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
        bandwidths: Measured bytes a second of weights that products read in turn, by the rows of the products, then by the
            bytes of all weights, both ascending.
        streaming: Bytes a second of operators that go over numbers once, in a cache; 0 for those of the memory.
        round: Seconds of a round on the host beside its operators.
        view: Seconds of an operator that only describes memory anew, on a processor; None for those of a call.
        request: Seconds of a request's beginning on the host beside its operators.
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
    bandwidths: Mapping[int, Mapping[float, float]] = field(default_factory=dict)
    streaming: float = 0.0
    round: float = 0.0
    view: float | None = None
    request: float = 0.0

    def __post_init__(self) -> None:
        figures = {"bandwidth": self.bandwidth, "call": self.call, "memory": self.memory, **self.flops}
        wrong = [name for name, figure in figures.items() if not figure or not figure > 0]
        if wrong or not self.flops:
            missing = ", ".join(wrong) or "flops"
            raise ValueError(f"device {self.name!r}: expected figures above 0, got none for {missing}, state them")

    def seconds(self, work: Work, dtype: str, weights: float | None = None) -> float:
        """The time that a work takes.

        Args:
            work: The work.
            dtype: Of the products.
            weights: Bytes of the weights that lie ready between two rounds, which decides the caches that serve them; None
                for those that the work reads.

        Returns:
            Seconds.

        Raises:
            ValueError: For a dtype that the device has no figures of.
        """
        if dtype not in self.flops:
            known = ", ".join(self.flops)
            raise ValueError(f"--dtype: expected one of {known} on {self.name}, got {dtype!r}, choose one of these")
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
        seconds = self.call * work.calls + work.flops / self.flops[dtype]
        seconds += (self.call if self.view is None else self.view) * work.views
        seconds += work.moved / (self.streaming or self.bandwidth)
        for (rows, inner, columns), count in work.products.items():
            numbers = inner * columns
            computing = 2 * rows * numbers / self.flops[dtype] if products is None else products(rows, numbers)
            seconds += count * max(computing, itemsize * numbers / self.reading(rows, ready))
        return seconds

    def reading(self, rows: float, weights: float) -> float:
        """Bytes a second at which products read their weights.

        Args:
            rows: Of the activations.
            weights: Bytes of all weights that are read in turn.
        """
        if not self.bandwidths:
            return self.bandwidth
        speeds = []
        for line in self.bandwidths.values():
            sizes = [log(size) for size in line]
            speeds.append(
                _between(sizes, [log(speed) for speed in line.values()], min(log(max(weights, 1)), sizes[-1]))
            )
        widths = [log(one) for one in self.bandwidths]
        beyond = max(log(rows) - widths[-1], 0.0)  # where more rows take as much longer
        return exp(_between(widths, speeds, min(log(rows), widths[-1])) - beyond)


# dense figures, without sparsity, from the makers' data sheets; a call is the launch of a kernel in eager PyTorch
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
    """Return the device of a name in the table.

    Raises:
        ValueError: The name is unknown.
    """
    if name not in DEVICES:
        raise ValueError(f"--device: expected one of {', '.join((*DEVICES, HERE))}, got {name!r}, choose one")
    return DEVICES[name]

"""The work of a pass or a round: products with weights, other operations, bytes, and calls. A device prices it in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}  # of a number, by dtype

Product = tuple[float, int, int]  # rows, inner size, columns


@dataclass(frozen=True, slots=True)
class Work:
    """The operations of a computation, without a device.

    Attributes:
        products: How often each product of activations [rows, inner] with a weight [inner, columns] is computed.
        flops: Floating-point operations of all else: attention, convolutions, recurrent states.
        moved: Bytes that all else reads and writes, the cache among them.
        calls: Operators that compute, products included.
        views: Operators that only describe memory anew.
    """

    products: Mapping[Product, float] = field(default_factory=lambda: MappingProxyType({}))
    flops: float = 0.0
    moved: float = 0.0
    calls: float = 0.0
    views: float = 0.0

    def __add__(self, other: Work) -> Work:
        products = dict(self.products)
        for shape, count in other.products.items():
            products[shape] = products.get(shape, 0.0) + count
        return Work(products, self.flops + other.flops, self.moved + other.moved, self.calls + other.calls,
                    self.views + other.views)  # fmt: skip

    def __mul__(self, times: float) -> Work:
        products = {shape: times * count for shape, count in self.products.items()}
        return Work(products, times * self.flops, times * self.moved, times * self.calls, times * self.views)

    __rmul__ = __mul__

    @property
    def total_flops(self) -> float:
        """Floating-point operations, a multiplication and an addition being two."""
        return self.flops + sum(2 * rows * inner * columns * n for (rows, inner, columns), n in self.products.items())

    def weight_bytes(self, itemsize: float) -> float:
        """Bytes of weights that the products read, each product reading its own."""
        return itemsize * sum(inner * columns * n for (_, inner, columns), n in self.products.items())


NOTHING = Work()


def total(parts: list[Work]) -> Work:
    """The sum of several works."""
    return sum(parts, NOTHING)


def product(rows: float, inner: int, columns: int, count: float = 1) -> Work:
    """The work of a linear layer, `count` times; a call each."""
    return Work({(rows, inner, columns): count}, calls=count)

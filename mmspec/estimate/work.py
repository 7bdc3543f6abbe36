"""The work of a pass or a round: products with weights, other operations, bytes and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}  # bytes of an element, by dtype

Product = tuple[float, int, int]  # rows, inner size, columns


@dataclass(frozen=True, slots=True)
class Work:
    """Work in operations and bytes on any device; `products` counts those of [rows, inner] with [inner, columns]."""

    products: Mapping[Product, float] = field(default_factory=lambda: MappingProxyType({}))
    flops: float = 0.0  # of the rest: attention, convolutions, recurrent states
    moved: float = 0.0  # bytes that the rest reads and writes, including the cache
    calls: float = 0.0  # operators that compute, products included
    views: float = 0.0  # operators that only create views

    def __add__(self, other: Work) -> Work:
        products = dict(self.products)
        for shape, count in other.products.items():
            products[shape] = products.get(shape, 0.0) + count
        return Work(
            products,
            self.flops + other.flops,
            self.moved + other.moved,
            self.calls + other.calls,
            self.views + other.views,
        )

    def __mul__(self, times: float) -> Work:
        products = {shape: times * count for shape, count in self.products.items()}
        return Work(products, times * self.flops, times * self.moved, times * self.calls, times * self.views)

    __rmul__ = __mul__

    @property
    def total_flops(self) -> float:
        """Floating-point operations; a multiply-add counts as two."""
        return self.flops + sum(2 * rows * inner * columns * n for (rows, inner, columns), n in self.products.items())

    def weight_bytes(self, itemsize: float) -> float:
        """Return the bytes of weights that the products read, with each product reading its own weight."""
        return itemsize * sum(inner * columns * n for (_, inner, columns), n in self.products.items())


NOTHING = Work()


def total(parts: list[Work]) -> Work:
    return sum(parts, NOTHING)


def product(rows: float, inner: int, columns: int, count: float = 1) -> Work:
    """Return the work of a linear layer, `count` times, with a call each."""
    return Work({(rows, inner, columns): count}, calls=count)

"""Slots of the layers of one shape on one device."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.kernels.slots import move_slots


class Slots:
    """Keys and values of several layers, [layers, rows, heads, slots, dim] each; `keys` and `values` may differ in dim.

    layers: how many there is room for.   capacity: slots allocated.
    """

    def __init__(self, layers: int, key: Tensor, value: Tensor, capacity: int):
        rows, heads = key.shape[:2]
        self.capacity, self.taken = capacity, 0
        self.keys = key.new_zeros(layers, rows, heads, capacity, key.shape[-1])
        self.values = value.new_zeros(layers, rows, heads, capacity, value.shape[-1])

    @property
    def device(self) -> torch.device:
        return self.keys.device

    @property
    def full(self) -> bool:
        """Whether every layer there is room for has come."""
        return self.taken == self.keys.shape[0]

    def fits(self, key: Tensor, value: Tensor) -> bool:
        """Whether a layer with such keys and values [rows, heads, N, dim] can be one of these."""
        return all(
            new.shape[:2] == pool.shape[1:3]
            and new.shape[-1] == pool.shape[-1]
            and new.device == pool.device
            and new.dtype == pool.dtype
            for new, pool in ((key, self.keys), (value, self.values))
        )

    def grow(self, capacity: int) -> None:
        if capacity > self.capacity:
            self.keys, self.values = (_grown(pool, capacity) for pool in (self.keys, self.values))
            self.capacity = capacity

    def move(self, length: Tensor, source: Tensor) -> None:
        """Puts the slots `length + source[:, i]` at `length + i` in every layer. length: int64 [rows]; source: [rows, n]."""
        move_slots(self.keys, self.values, length.to(self.device), source.to(self.device))


def _grown(pool: Tensor, slots: int) -> Tensor:
    larger = pool.new_zeros(*pool.shape[:3], slots, pool.shape[4])
    larger[:, :, :, : pool.shape[3]] = pool
    return larger

"""What a training step needs, made by worker processes a few steps before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from torch.utils.data import DataLoader, Dataset

Made = TypeVar("Made")


def ahead(make: Callable[[int], Made], steps: int, workers: int) -> Callable[[int], Made]:
    """`make`, a pure function of a step below `steps`, as a function that is asked for one step after the other.

    workers: processes that make values meanwhile, which pays where a GPU would wait for them. They are forked, so that `make`
    may be any function that touches no GPU. 0: made when asked for.
    """
    return _Ahead(make, steps, workers) if workers else make


class _Ahead(Generic[Made]):
    def __init__(self, make: Callable[[int], Made], steps: int, workers: int):
        self.steps, self.workers = _Steps(make), workers
        self.count, self.next = steps, -1
        self.source: Iterator[Made] = iter(())

    def __call__(self, step: int) -> Made:
        if step != self.next:
            order = range(step, self.count)
            self.source = iter(DataLoader(self.steps, batch_size=None, sampler=order, num_workers=self.workers,
                                          multiprocessing_context="fork"))  # fmt: skip
        self.next = step + 1
        return next(self.source)


class _Steps(Dataset, Generic[Made]):
    def __init__(self, make: Callable[[int], Made]):
        self.make = make

    def __getitem__(self, step: int) -> Made:
        return self.make(step)

"""Counting the work of running code: all operators that torch dispatches, on any device including meta."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from mmspec.core.round.draft import Draft, Evidence, root_only
from mmspec.core.round.loop import DecodingRun
from mmspec.estimate.work import NOTHING, Work, total

_PRODUCTS = ("mm", "addmm")  # the last two tensors are activations and a weight
_FREE = frozenset(("lift_fresh", "detach", "empty", "empty_like", "new_empty", "alias"))


class WorkCounter(TorchDispatchMode):
    """Counts operators, and the floating-point operations and bytes of their tensors, while it is entered. `weights`
    has, by address, the bytes of the distinct weights that products have read. Tensors with a number of elements in
    `skipped` count no bytes, such as recurrent states."""

    def __init__(self, skipped: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.skipped = skipped
        self.products: Counter[tuple[int, int, int]] = Counter()
        self.flops = self.moved = self.calls = self.views = 0
        self.weights: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet, name = func.overloadpacket, func.overloadpacket.__name__
        if name in _FREE:
            return result
        if func.is_view or name == "_unsafe_view":
            self.views += 1
            return result
        self.calls += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if name in _PRODUCTS:
            left, right = tensors[-2:]
            if left.numel() and right.numel():
                self.products[left.shape[0], left.shape[1], right.shape[1]] += 1
            self.weights[right.data_ptr()] = right.numel() * right.element_size()
            return result
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=result)
        elif name == "_scaled_dot_product_flash_attention_for_cpu":
            self.flops += _attention_flops(*args[:3])
        read = [] if name == "embedding" else tensors  # an embedding reads a few rows of its table
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        sizes = [(tensor.numel(), tensor.element_size()) for tensor in (*read, *written)]
        self.moved += sum(count * itemsize for count, itemsize in sizes if count not in self.skipped)
        return result

    @property
    def work(self) -> Work:
        return Work(dict(self.products), self.flops, self.moved, self.calls, self.views)


def _attention_flops(query: Tensor, key: Tensor, value: Tensor) -> int:
    batch, heads, rows, size = query.shape
    return 2 * batch * heads * rows * key.shape[2] * (size + value.shape[3])


def count_work(function: Callable[[], object]) -> Work:
    with WorkCounter() as counter:
        function()
    return counter.work


def own_clock(device: str = "cpu") -> Callable[[], float]:
    """Return the clock for timings; that of this thread if it does all the work, undisturbed by other processes."""
    return thread_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """The work of a request, counted on its first rounds."""

    prefill: Work  # up to the first value
    rest: Work  # mean of a round without the target's pass
    target: Work  # mean of the target's pass of a round
    weights: int  # bytes of the distinct weights that rounds have read
    passed: float | None = None  # target pass of a round over a pass of a single value, in time; None: untimed

    @property
    def round(self) -> Work:
        return self.rest + self.target


def count_request(run: DecodingRun, rounds: int = 4, timed: int = 0, every: int = 1) -> CountedRequest:
    """Count the work of the prefill and of `rounds` rounds, `every` apart, of a request that has not begun; it may end
    early. `timed` is how often the target's pass of each round, and a pass over a single value, are timed in turn.
    Uncommitted passes leave no trace, while rounds cannot be timed this way."""
    with WorkCounter() as first:
        alive = run.step()
    passes, seconds, wholes = [], [], []
    weights: dict[int, int] = {}
    while alive and len(wholes) < rounds:
        with _watched_passes(run, passes, seconds, timed), WorkCounter() as counter:
            alive = run.step()
        wholes.append(counter.work)
        weights |= counter.weights
        for _ in range(every - 1):
            alive = alive and run.step()
    if not wholes:
        return CountedRequest(first.work, NOTHING, NOTHING, sum(first.weights.values()))
    share = 1 / len(wholes)
    target = share * total(passes)
    rest = share * total(wholes) + -1 * target
    return CountedRequest(first.work, rest, target, sum(weights.values()), _ratio(seconds))


def _ratio(seconds: list[tuple[float, float]]) -> float | None:
    """Return the time of all timed passes over that of the passes over a single value; None without timings."""
    wide, single = (sum(column) for column in zip(*seconds, strict=True)) if seconds else (0.0, 0.0)
    return wide / single if single else None


@contextmanager
def _watched_passes(
    run: DecodingRun, passes: list[Work], seconds: list[tuple[float, float]], timed: int
) -> Iterator[None]:
    score = run.target.score

    clock = own_clock()

    def timed_pass(draft: Draft) -> float:
        began = clock()
        score(draft)
        return clock() - began

    def watched(draft: Draft) -> Evidence:
        with _disable_current_modes():  # timing must not be counted or slowed by counting
            for _ in range(timed):
                single = timed_pass(root_only(run.target.pending))
                seconds.append((timed_pass(draft), single))
        with WorkCounter() as counter:
            evidence = score(draft)
        passes.append(counter.work)
        return evidence

    run.target.score = watched
    try:
        yield
    finally:
        del run.target.score

"""Counting the work of code that runs: every operator that torch dispatches, on any device, the meta device included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from mmspec.core.draft import Draft, Evidence, root_only
from mmspec.core.loop import DecodingRun
from mmspec.estimate.work import NOTHING, Work, total

_PRODUCTS = ("mm", "addmm")  # the last two tensors are activations and a weight
_FREE = frozenset(("lift_fresh", "detach", "empty", "empty_like", "new_empty", "alias"))


class WorkCounter(TorchDispatchMode):
    """Counts operators, and the floating-point operations and bytes of their tensors, while it is entered.

    Args:
        skipped: Sizes of tensors, in numbers, whose bytes are not counted, such as recurrent states.

    Attributes:
        weights: Bytes of the distinct weights that products have read, by address.
    """

    def __init__(self, skipped: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.skipped = skipped
        self.products: Counter[tuple[int, int, int]] = Counter()
        self.flops = self.moved = self.calls = self.views = 0
        self.weights: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        packet, name = func.overloadpacket, func.overloadpacket.__name__
        if name in _FREE:
            return output
        if func.is_view or name == "_unsafe_view":
            self.views += 1
            return output
        self.calls += 1
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if name in _PRODUCTS:
            left, right = tensors[-2:]
            if left.numel() and right.numel():
                self.products[left.shape[0], left.shape[1], right.shape[1]] += 1
            self.weights[right.data_ptr()] = right.numel() * right.element_size()
            return output
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=output)
        elif name == "_scaled_dot_product_flash_attention_for_cpu":
            self.flops += _attention_flops(*args[:3])
        read = [] if name == "embedding" else tensors  # which reads some rows of its table
        written = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
        sizes = [(one.numel(), one.element_size()) for one in (*read, *written)]
        self.moved += sum(count * itemsize for count, itemsize in sizes if count not in self.skipped)
        return output

    @property
    def work(self) -> Work:
        """The work so far."""
        return Work(dict(self.products), self.flops, self.moved, self.calls, self.views)


def _attention_flops(query: Tensor, key: Tensor, value: Tensor) -> int:
    batch, heads, rows, size = query.shape
    return 2 * batch * heads * rows * key.shape[2] * (size + value.shape[3])


def count_work(function: Callable[[], object]) -> Work:
    """The work of a call."""
    with WorkCounter() as counter:
        function()
    return counter.work


def own_clock(device: str = "cpu") -> Callable[[], float]:
    """The clock of figures: of this thread alone where it does all the work, so that other processes lengthen nothing."""
    return thread_time if device == "cpu" and torch.get_num_threads() == 1 else perf_counter


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """The work of a request, counted on its first rounds.

    Attributes:
        prefill: The work up to the first value.
        rest: The mean work of a round, without the target's pass.
        target: The mean work of the target's pass of a round.
        weights: Bytes of the distinct weights that rounds have read.
        passed: Seconds of the target's pass of a round over those of a pass over a single value, where passes were timed.
    """

    prefill: Work
    rest: Work
    target: Work
    weights: int
    passed: float | None = None

    @property
    def round(self) -> Work:
        """The mean work of a round."""
        return self.rest + self.target


def count_request(run: DecodingRun, rounds: int = 4, timed: int = 0, every: int = 1) -> CountedRequest:
    """Count the work of a request's prefill and of its first rounds.

    Args:
        run: A request that has not begun.
        rounds: Rounds that are counted.
        every: Every how many rounds a round is counted.
        timed: How often the target's pass of each round, and one over a single value, are timed in turn beside; 0 times
            nothing. A pass that is not committed leaves no trace, so a round is never timed.

    Returns:
        The work; where a request ends earlier, of the rounds that it had.
    """
    with WorkCounter() as first:
        alive = run.step()
    passes, ratios, wholes = [], [], []
    weights: dict[int, int] = {}
    while alive and len(wholes) < rounds:
        with _watched_passes(run, passes, ratios, timed), WorkCounter() as counter:
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
    return CountedRequest(first.work, rest, target, sum(weights.values()), median(ratios) if ratios else None)


@contextmanager
def _watched_passes(run: DecodingRun, passes: list[Work], ratios: list[float], timed: int) -> Iterator[None]:
    """Count, and time, the passes of a request's target inside the block."""
    score = run.target.score

    clock = own_clock()

    def seconds(draft: Draft) -> float:
        began = clock()
        score(draft)
        return clock() - began

    def watched(draft: Draft) -> Evidence:
        with _disable_current_modes():  # neither counted nor slowed by counting
            for _ in range(timed):
                single = seconds(root_only(run.target.pending))
                ratios.append(seconds(draft) / single)
        with WorkCounter() as counter:
            evidence = score(draft)
        passes.append(counter.work)
        return evidence

    run.target.score = watched
    try:
        yield
    finally:
        del run.target.score

"""Speed by draft length, tree size and batch, and the point beyond which drafting is not faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from mmspec.estimate.device import BANDWIDTH_SHARE, FLOPS_SHARE
from mmspec.estimate.round_cost import Estimate, Request, RoundCost
from mmspec.estimate.schedules import Durations, Simulated, simulate

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
TREES = (8, 16, 24, 32, 48, 64)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NOT_MEASURED = "estimate, not measured"


@dataclass(frozen=True)
class EstimateTable:
    """The estimates of one model, drafter and device."""

    costs: RoundCost
    request: Request
    chosen: Estimate  # the estimate at the requested draft size, or at the fastest
    lengths: Sequence[Estimate]  # chains, by draft length
    trees: Sequence[Estimate]  # by tree size at the chosen length
    batches: Sequence[tuple[int, Estimate]]  # a batch and its fastest draft
    schedules: Sequence[Simulated]  # simulated at the chosen length

    @property
    def stops(self) -> str:
        """The point beyond which drafting is not faster, as a sentence."""
        slower = [batch for batch, estimate in self.batches if estimate.speedup <= 1]
        if self.chosen.length and self.chosen.speedup <= 1:
            return f"drafts of {self.chosen.length} levels are slower than plain decoding here"
        if slower:
            return f"from batch {min(slower)} on no draft is faster than plain decoding"
        return f"drafting is faster up to the largest batch tried, {max(batch for batch, _ in self.batches)}"

    @property
    def fits(self) -> bool:
        """Whether weights and cache fit the device's memory."""
        return self.chosen.memory <= self.costs.device.memory

    def record(self) -> dict[str, Any]:
        costs = self.costs
        device = costs.device
        return {
            "label": NOT_MEASURED,
            "model": costs.target.name,
            "drafter": costs.drafter.name,
            "device": device.name,
            "title": device.title,
            "source": device.source,
            "assumed": None if device.products else {"bandwidth_share": BANDWIDTH_SHARE, "flops_share": FLOPS_SHARE},
            "acceptance": {"chances": list(costs.curve.chances), "source": costs.curve.source},
            "request": asdict(self.request),
            "weights_bytes": costs.target.weight_bytes(self.request.dtype),
            "kv_bytes_per_token": costs.target.kv_bytes(1, self.request.dtype)
            - costs.target.kv_bytes(0, self.request.dtype),
            "flops_per_token": costs.target.pass_work(1, 0, self.request.dtype).total_flops,
            "calls_per_pass": costs.target.calls,
            "fits": self.fits,
            "stops": self.stops,
            "chosen": self.chosen.record(),
            "lengths": [estimate.record() for estimate in self.lengths],
            "trees": [estimate.record() for estimate in self.trees],
            "batches": [{"batch": batch, **estimate.record()} for batch, estimate in self.batches],
            "schedules": [asdict(schedule) for schedule in self.schedules],
        }


def estimate_table(
    costs: RoundCost,
    request: Request,
    *,
    length: int | None = None,
    nodes: int | None = None,
    lengths: Sequence[int] = LENGTHS,
    trees: Sequence[int] = TREES,
    batches: Sequence[int] = BATCHES,
) -> EstimateTable:
    """Return the estimates around a request. `length`, the levels of its draft, is by default the fastest of `lengths`
    and `trees`; `nodes` are by default those of a chain."""
    offered = tuple(trees) if costs.drafter.tree else ()
    if length is None:
        chosen = costs.best(request, lengths, offered)
        chosen = costs.estimate(request, 1) if chosen.length == 0 else chosen
    else:
        chosen = costs.estimate(request, length, nodes)
    by_tree = [costs.estimate(request, chosen.length, size) for size in offered if size > chosen.length]
    by_batch = [(batch, costs.best(costs.with_batch(request, batch), lengths, offered)) for batch in batches]
    return EstimateTable(
        costs,
        request,
        chosen,
        [costs.estimate(request, n) for n in lengths],
        by_tree,
        by_batch,
        _simulated(costs, request, chosen),
    )


def _simulated(costs: RoundCost, request: Request, chosen: Estimate) -> list[Simulated]:
    @cache
    def verify(values: int) -> float:
        return costs.estimate(request, values, values).verify

    chain = costs.estimate(request, chosen.length)
    times = Durations(chain.draft / chain.length, verify)
    return simulate(times, costs.curve.chain(), chain.length)

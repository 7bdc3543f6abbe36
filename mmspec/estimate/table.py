"""Speed by draft length, tree size and batch, and the point from which on drafting is no longer faster."""

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
    """The estimates of one model, drafter and device.

    Attributes:
        costs: The costs of the target and the drafter.
        request: The settings of the request.
        chosen: At the draft that was asked for, or at the fastest.
        lengths: By draft length, chains.
        trees: By tree size at the chosen length.
        batches: By batch, each at its fastest draft.
        schedules: Simulated schedules at the chosen length.
    """

    costs: RoundCost
    request: Request
    chosen: Estimate
    lengths: Sequence[Estimate]
    trees: Sequence[Estimate]
    batches: Sequence[tuple[int, Estimate]]
    schedules: Sequence[Simulated]

    @property
    def stops(self) -> str:
        """From where on drafting is no longer faster, in a sentence."""
        slower = [batch for batch, one in self.batches if one.speedup <= 1]
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
        """The table as JSON."""
        costs = self.costs
        device = costs.device
        return {
            "label": NOT_MEASURED,
            "model": costs.target.name, "drafter": costs.drafter.name, "device": device.name, "title": device.title,
            "source": device.source,
            "assumed": None if device.products else {"bandwidth_share": BANDWIDTH_SHARE, "flops_share": FLOPS_SHARE},
            "acceptance": {"chances": list(costs.curve.chances), "source": costs.curve.source},
            "request": asdict(self.request),
            "weights_bytes": costs.target.weight_bytes(self.request.dtype),
            "kv_bytes_per_token": costs.target.kv_bytes(1, self.request.dtype) - costs.target.kv_bytes(0, self.request.dtype),
            "flops_per_token": costs.target.pass_work(1, 0, self.request.dtype).total_flops,
            "calls_per_pass": costs.target.calls, "fits": self.fits, "stops": self.stops,
            "chosen": asdict(self.chosen),
            "lengths": [asdict(one) for one in self.lengths],
            "trees": [asdict(one) for one in self.trees],
            "batches": [{"batch": batch, **asdict(one)} for batch, one in self.batches],
            "schedules": [asdict(one) for one in self.schedules],
        }  # fmt: skip


def estimate_table(
    costs: RoundCost, request: Request, *, length: int | None = None, nodes: int | None = None,
    lengths: Sequence[int] = LENGTHS, trees: Sequence[int] = TREES, batches: Sequence[int] = BATCHES,
) -> EstimateTable:  # fmt: skip
    """The estimates around a request.

    Args:
        costs: Target, drafter, device and acceptance.
        request: The settings of the request.
        length: Levels of its draft; the fastest of `lengths` and `trees`, if left out.
        nodes: Of its tree; those of a chain, if left out.
        lengths: Draft lengths of the table.
        trees: Tree sizes of the table.
        batches: Batches of the table.
    """
    offered = tuple(trees) if costs.drafter.tree else ()
    if length is None:
        chosen = costs.best(request, lengths, offered)
        chosen = costs.estimate(request, 1) if chosen.length == 0 else chosen
    else:
        chosen = costs.estimate(request, length, nodes)
    by_tree = [costs.estimate(request, chosen.length, size) for size in offered if size > chosen.length]
    by_batch = [(batch, costs.best(costs.with_batch(request, batch), lengths, offered)) for batch in batches]
    return EstimateTable(
        costs, request, chosen, [costs.estimate(request, n) for n in lengths], by_tree, by_batch,
        _simulated(costs, request, chosen),
    )  # fmt: skip


def _simulated(costs: RoundCost, request: Request, chosen: Estimate) -> list[Simulated]:
    """The schedules at a chain of the chosen length."""

    @cache
    def verify(values: int) -> float:
        return costs.estimate(request, values, values).verify

    chain = costs.estimate(request, chosen.length)
    times = Durations(chain.draft / chain.length, verify)
    return simulate(times, costs.curve.chain(), chain.length)

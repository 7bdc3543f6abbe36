"""The tables and curves of `mmspec estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.cli.console import say
from mmspec.cli.tables import print_table

if TYPE_CHECKING:
    from mmspec.estimate.round_cost import Estimate
    from mmspec.estimate.table import EstimateTable
    from mmspec.evaluate.report.plots import Panel


def show_table(table: EstimateTable) -> None:
    """Print the tables of an estimate, and the batch from which drafting is no longer faster."""
    from mmspec.estimate.table import NOT_MEASURED

    costs, request = table.costs, table.request
    record, chosen = table.record(), table.chosen
    say(f"{costs.target.name} with {costs.drafter.name} on {costs.device.title}: {NOT_MEASURED}")
    parts = (
        f"weights {record['weights_bytes'] / 1e9:.2f} GB",
        f"cache {record['kv_bytes_per_token'] / 1024:.1f} KiB a token",
        f"{record['flops_per_token'] / 1e9:.2f} GFLOP a token",
        f"{record['calls_per_pass']:,.0f} operators a pass",
        request.dtype,
    )
    say(", ".join(parts))
    say(f"acceptance: {costs.curve.source}; device: {costs.device.source}")
    heads = (
        "draft",
        "values a round",
        "draft ms",
        "pass ms",
        "prefill ms",
        "x plain",
        "x decoding",
        "target efficiency",
    )
    shown = {id(chosen): "chosen: ", 0: ""}
    rows = [_line(candidate, shown.get(id(candidate), "")) for candidate in (chosen, *table.lengths, *table.trees)]
    print_table(
        f"batch {request.batch}, {request.context} tokens, {request.pictures} pictures, {request.new_tokens} new",
        heads,
        rows,
        heads[1:],
    )
    batches = [(batch, *_line(estimate, "")) for batch, estimate in table.batches]
    print_table("the fastest draft of every batch", ("batch", *heads), batches, heads[1:])
    schedules = [
        (schedule.schedule, schedule.devices, f"{schedule.speedup:.2f}", schedule.note) for schedule in table.schedules
    ]
    title = f"schedules on a virtual clock, chains of {chosen.length}: simulated"
    print_table(title, ("schedule", "devices", "x plain", "assumed"), schedules)
    say(table.stops)
    if not table.fits:
        say(
            f"weights and cache need {chosen.memory / 1e9:.1f} GB, more than the {costs.device.memory / 1e9:.0f} GB there are"
        )


def _line(one: Estimate, mark: str) -> tuple[str, ...]:
    name = (
        "plain"
        if not one.length
        else f"chain of {one.length}"
        if one.nodes == one.length
        else (f"tree of {one.nodes}, {one.length} levels")
    )
    seconds = [f"{1000 * part:.2f}" for part in (one.draft, one.verify, one.prefill)]
    rates = [f"{rate:.2f}" for rate in (one.speedup, one.decoding, one.target_efficiency)]
    return (f"{mark}{name}", f"{one.tokens:.2f}", *seconds, *rates)


def estimate_panels(table: EstimateTable) -> list[Panel]:
    """Return curves of speed by draft length, tree size and batch, beside the speed of plain decoding."""
    from mmspec.evaluate.report.plots import SPEEDUP, Panel

    panels = []
    groups = {
        "levels of a chain": [(candidate.length, candidate.speedup) for candidate in table.lengths],
        f"nodes of a tree of {table.chosen.length} levels": [
            (candidate.nodes, candidate.speedup) for candidate in table.trees
        ],
        "batch": [(batch, estimate.speedup) for batch, estimate in table.batches],
    }
    for axis, points in groups.items():
        if points:
            xs, ys = zip(*points, strict=True)
            lines = {"estimated": (xs, ys), "plain": ((xs[0], xs[-1]), (1.0, 1.0))}
            panels.append(Panel(f"{table.costs.target.name}, {table.costs.device.name}", axis, SPEEDUP, lines))
    return panels

"""`mmspec bench kernels`: a row per case."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmspec.evaluate.base.provenance import environment
from mmspec.evaluate.machine.kernel_cases import KernelCase, cases
from mmspec.evaluate.machine.measure import copy_bandwidth, graph_seconds, launches, paired
from mmspec.kernels.dispatch import INTERPRETED, on_kernels
from mmspec.run.placement import AUTO, device_name, placement_of

ABOUT = "The verify core's ops against straightforward torch code and the memory they have to read."
UNMEASURED = "not yet measured"
COLUMNS = {
    "case": "op", "shape": "shape", "ratio": "x torch", "microseconds": "us", "graph_microseconds": "us, graph",
    "floor_microseconds": "floor us",
    "bytes_moved": "bytes moved", "bytes_floor": "bytes floor", "bandwidth_share": "of copy bandwidth",
    "launches": "launches", "torch_launches": "torch's",
}  # fmt: skip


def run(
    device: str = AUTO, tiny: bool = False, repeats: int = 20, on_row: Callable[[dict], None] | None = None
) -> dict:
    """Return a bench file with the ratio to straightforward torch code per case (above 1: ours is faster).
    Microseconds, their floor at the measured copy bandwidth, and shares of it are None without a GPU. There every case
    is timed twice: with the host's launches, and replayed as a CUDA graph as in captured rounds. Under the interpreter,
    where sizes are always `tiny`, ratios are None too: it only shows that everything runs, and how many kernels are
    launched."""
    where = torch.device(placement_of(device).device)
    if repeats < 1:
        raise ValueError(f"--repeats: expected at least 1, got {repeats}, change it")
    interpreted = INTERPRETED and where.type == "cpu"
    bandwidth, rows = copy_bandwidth(where), []
    with torch.no_grad():
        for make in cases(where, tiny or interpreted):
            rows.append(_row(make(), where, 0 if interpreted else repeats, bandwidth))
            if on_row is not None:
                on_row(rows[-1])
    kind = "interpreter" if interpreted else "kernels" if on_kernels(torch.empty(0, device=where)) else "reference"
    env = environment(
        bench="kernels",
        device=device_name(where),
        side=kind,
        tiny=tiny or interpreted,
        repeats=repeats,
        copy_bandwidth=bandwidth,
        timing="medians of paired runs on the same inputs; x torch: softmax, gather and multinomial written out",
    )
    return {"env": env, "rows": rows}


def shown(row: dict) -> dict[str, str]:
    return {title: _cell_text(row[key]) for key, title in COLUMNS.items()}


def _cell_text(value: object) -> str:
    if value is None:
        return UNMEASURED
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _row(case: KernelCase, device: torch.device, repeats: int, bandwidth: float | None) -> dict:
    """Return the row of a case; 0 repeats measure no times."""
    ours, ratio, timed = None, None, device.type == "cuda"
    if repeats:
        ours, _, ratio = paired(case.ours, case.plain, device, repeats)
    # torch's code is not captured: its random draws leave the generator unusable where a capture fails
    graph = graph_seconds(case.ours, device, repeats) if repeats else None
    return {
        "case": case.name,
        "shape": case.shape,
        "ratio": None if ratio is None else float(f"{ratio:.3g}"),
        "microseconds": round(ours * 1e6, 2) if timed else None,
        "graph_microseconds": round(graph * 1e6, 2) if graph else None,
        "floor_microseconds": round(case.floor / bandwidth * 1e6, 2) if timed else None,
        "bytes_moved": case.moved,
        "bytes_floor": case.floor,
        "bandwidth_share": round(case.moved / (graph or ours) / bandwidth, 3) if timed else None,
        "launches": launches(case.ours, device),
        "torch_launches": launches(case.plain, device) if timed else None,
    }

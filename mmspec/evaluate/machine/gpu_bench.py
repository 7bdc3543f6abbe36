"""`mmspec bench gpu`: steps that can be run alone and write a single file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median

import torch

from mmspec.evaluate.engine.placement import AUTO, device_name, placement_of
from mmspec.evaluate.engine.provenance import environment
from mmspec.evaluate.machine import kernel_bench as kernels
from mmspec.evaluate.machine.measure import figures_text, seconds
from mmspec.evaluate.machine.published_decoders import NAMES, cached_decoder
from mmspec.evaluate.machine.trained_models import AGAINST, image_rows, vlm_rows

ABOUT = (
    "The benefit of a GPU: ops of the verify core, the cost of passes over several drafted values for 7B and 3B models, and "
    "models trained on the spot."
)
COST = "cost only: random weights, no accept length is implied"
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
_WARM = 3
_Rows = Callable[[torch.device, bool], Iterable[dict]]


def run(
    device: str = AUTO, tiny: bool = False, repeats: int = 20, on_row: Callable[[dict], None] | None = None,
    steps: Sequence[str] = (),
) -> dict:  # fmt: skip
    """Return a bench file with the rows of all steps, in their order.

    Args:
        device: "auto", "cuda", "cuda:N", or "cpu", which only shows that the steps run and needs `tiny`.
        tiny: Use small sizes.
        repeats: The timed runs of each case.
        on_row: A function that is called with every finished row.
        steps: Some of `STEPS`, () for all.

    Raises:
        ValueError: The device does not exist, is a CPU without `tiny`, or a step is unknown.
    """
    where = torch.device(placement_of(device).device)
    if repeats < 1:
        raise ValueError(f"--repeats: expected at least 1, got {repeats}, change it")
    if where.type == "cpu" and not tiny:
        raise ValueError("--device: expected a GPU, got cpu; add --tiny to see on a CPU that the steps run")
    unknown = [step for step in steps if step not in STEPS]
    if unknown:
        raise ValueError(f"--steps: expected some of {', '.join(STEPS)}, got {unknown[0]!r}, pick from these")
    rows: list[dict] = []
    for step in STEPS if not steps else steps:
        for row in STEPS[step](where, tiny, repeats):
            rows.append({"step": step, **row})
            if on_row is not None:
                on_row(rows[-1])
    return {
        "env": environment(bench="gpu", device=device_name(where), tiny=tiny, repeats=repeats, cost=COST),
        "rows": rows,
    }


def shown(row: dict) -> dict[str, str]:
    """Return a row as the table prints it."""
    if row["step"] == "kernels":
        took, of_torch = row["microseconds"], "" if row["ratio"] is None else f", {row['ratio']} x torch"
        figure = (kernels.UNMEASURED if took is None else f"{took} us") + of_torch
        subject = f"{row['case']} {row['shape']}"
    elif row["step"] in _TRAINED:
        where = f"batch {row['batch']}, T = {row['temperature']:g}: {row['method']}"
        subject = f"{row['model']}, {row['parameters'] / 1e6:.1f} M, {where}"
        figure = figures_text(row, AGAINST[row["step"]])
    else:
        subject = f"{row['model']}, {row['context']} cached (cost only)"
        figure = "  ".join(["t(N)/t(1)", *(f"{nodes}: {ratio}" for nodes, ratio in row["cost"].items())])
    return {"step": row["step"], "what": subject, "figure": figure}


def _kernels(device: torch.device, tiny: bool, repeats: int) -> list[dict]:
    return kernels.run(str(device), tiny, repeats)["rows"]


def _cost(device: torch.device, tiny: bool, repeats: int) -> list[dict]:
    """Return the verify-cost curve t(N) / t(1) of each shape: medians of passes over N values after a cached context."""
    dtype, context = (torch.bfloat16, 1024) if device.type == "cuda" else (torch.float32, 40)
    rows = []
    for name in NAMES:
        context = min(context, 512) if name.startswith("LlamaGen") else context
        model = cached_decoder(name, device, dtype, context, tiny)
        took = {nodes: _pass_seconds(model.score, nodes, device, repeats) for nodes in (WIDTHS[:3] if tiny else WIDTHS)}
        rows.append({
            "model": name, "label": COST, "parameters": model.parameters, "context": context, "dtype": str(dtype)[6:],
            "milliseconds": round(took[1] * 1e3, 3) if device.type == "cuda" else None,
            "cost": {str(nodes): round(one / took[1], 3) for nodes, one in took.items()},
        })  # fmt: skip
        del model
    return rows


def _pass_seconds(score: Callable[[int], object], nodes: int, device: torch.device, repeats: int) -> float:
    for _ in range(_WARM):
        score(nodes)
    return median(seconds(lambda: score(nodes), device) for _ in range(repeats))


def _spot(rows: _Rows, device: torch.device, tiny: bool, repeats: int) -> Iterable[dict]:
    """Return the rows of models trained on the spot; every request is timed once, so that repeats do not apply."""
    return rows(device, tiny)


_TRAINED = {"vlm": vlm_rows, "image": image_rows}
STEPS: dict[str, Callable[[torch.device, bool, int], Iterable[dict]]] = {
    "kernels": _kernels, "cost": _cost, **{name: partial(_spot, rows) for name, rows in _TRAINED.items()},
}  # fmt: skip

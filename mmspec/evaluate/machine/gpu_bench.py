"""`mmspec bench gpu`: steps that can be run alone and write a single file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median

import torch

from mmspec.evaluate.base.provenance import environment
from mmspec.evaluate.machine import kernel_bench as kernels
from mmspec.evaluate.machine.measure import figures_text, graph_seconds, seconds
from mmspec.evaluate.machine.published_decoders import NAMES, cached_decoder
from mmspec.evaluate.machine.real_model import at_hand, real_rows
from mmspec.evaluate.machine.trained_models import AGAINST, image_rows, vlm_rows
from mmspec.run.placement import AUTO, device_name, placement_of

ABOUT = (
    "The benefit of a GPU: ops of the verify core, the cost of passes over several drafted values for 7B and 3B models, "
    "a published model if it has been fetched, and models trained on the spot."
)
COST = "cost only: random weights, no accept length is implied"
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
_WARM = 3
_Rows = Callable[[torch.device, bool], Iterable[dict]]


def run(
    device: str = AUTO,
    tiny: bool = False,
    repeats: int = 20,
    on_row: Callable[[dict], None] | None = None,
    steps: Sequence[str] = (),
) -> dict:
    """Return a bench file with the rows of all steps, in their order. The device "cpu" only shows that the steps run
    and needs `tiny`, small sizes. `repeats` are timed runs of each case. `steps` are some of `STEPS`; () for all whose
    models are at hand."""
    where = torch.device(placement_of(device).device)
    if repeats < 1:
        raise ValueError(f"--repeats: expected at least 1, got {repeats}, change it")
    if where.type == "cpu" and not tiny:
        raise ValueError("--device: expected a GPU, got cpu; add --tiny to see on a CPU that the steps run")
    unknown = [step for step in steps if step not in STEPS]
    if unknown:
        raise ValueError(f"--steps: expected some of {', '.join(STEPS)}, got {unknown[0]!r}, pick from these")
    rows: list[dict] = []
    for step in steps or [step for step in STEPS if step != "real" or at_hand()]:
        for row in STEPS[step](where, tiny, repeats):
            rows.append({"step": step, **row})
            if on_row is not None:
                on_row(rows[-1])
    return {
        "env": environment(bench="gpu", device=device_name(where), tiny=tiny, repeats=repeats, cost=COST),
        "rows": rows,
    }


def shown(row: dict) -> dict[str, str]:
    if row["step"] == "kernels":
        took, of_torch = row["microseconds"], "" if row["ratio"] is None else f", {row['ratio']} x torch"
        graph = "" if row["graph_microseconds"] is None else f"; as a graph {row['graph_microseconds']} us"
        figure = (kernels.UNMEASURED if took is None else f"{took} us") + of_torch + graph
        subject = f"{row['case']} {row['shape']}"
    elif row["step"] in _TIMED:
        where = f"batch {row['batch']}, T = {row['temperature']:g}: {row['method']}"
        subject = f"{row['model']}, {row['parameters'] / 1e6:.1f} M, {where}"
        figure = figures_text(row, AGAINST[row["step"]])
    else:
        subject = f"{row['model']}, {row['context']} cached (cost only)"
        curve = row["graph_cost"] or row["cost"]
        title = "t(N)/t(1) as a graph" if row["graph_cost"] else "t(N)/t(1)"
        figure = "  ".join([title, *(f"{nodes}: {ratio}" for nodes, ratio in curve.items())])
    return {"step": row["step"], "what": subject, "figure": figure}


def _kernels(device: torch.device, tiny: bool, repeats: int) -> list[dict]:
    return kernels.run(str(device), tiny, repeats)["rows"]


def _cost(device: torch.device, tiny: bool, repeats: int) -> list[dict]:
    """Return the verify-cost curve t(N) / t(1) of each shape: medians of passes over N values after a cached context.
    On a GPU passes are also timed as CUDA graphs: launched by the host, a pass of these models is bound by the
    launches."""
    dtype, context = (torch.bfloat16, 1024) if device.type == "cuda" else (torch.float32, 40)
    rows = []
    for name in NAMES:
        context = min(context, 512) if name.startswith("LlamaGen") else context
        model = cached_decoder(name, device, dtype, context, tiny)
        widths = WIDTHS[:3] if tiny else WIDTHS
        took = {nodes: _pass_seconds(model.score, nodes, device, repeats) for nodes in widths}
        graphs = {nodes: graph_seconds(partial(model.score, nodes), device, repeats) for nodes in widths}
        rows.append(
            {
                "model": name,
                "label": COST,
                "parameters": model.parameters,
                "context": context,
                "dtype": str(dtype)[6:],
                "milliseconds": round(took[1] * 1e3, 3) if device.type == "cuda" else None,
                "cost": _curve(took),
                "graph_milliseconds": round(graphs[1] * 1e3, 3) if graphs[1] else None,
                "graph_cost": _curve(graphs),
            }
        )
        del model
    return rows


def _curve(took: dict[int, float | None]) -> dict[str, float] | None:
    """Return t(N) / t(1) by N; None where a pass was not timed."""
    if None in took.values():
        return None
    return {str(nodes): round(seconds / took[1], 3) for nodes, seconds in took.items()}


def _pass_seconds(score: Callable[[int], object], nodes: int, device: torch.device, repeats: int) -> float:
    for _ in range(_WARM):
        score(nodes)
    return median(seconds(lambda: score(nodes), device) for _ in range(repeats))


def _once(rows: _Rows, device: torch.device, tiny: bool, repeats: int) -> Iterable[dict]:
    """Return the rows of timed requests; each is timed once, so that repeats do not apply."""
    return rows(device, tiny)


_TIMED = {"real": real_rows, "vlm": vlm_rows, "image": image_rows}
STEPS: dict[str, Callable[[torch.device, bool, int], Iterable[dict]]] = {
    "kernels": _kernels,
    "cost": _cost,
    **{name: partial(_once, rows) for name, rows in _TIMED.items()},
}

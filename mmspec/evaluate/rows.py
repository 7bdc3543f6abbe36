"""Bench rows: the figures of one method in one setting, and how they compare with other rows of the setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from mmspec.evaluate.bench import (
    Attempt,
    completed,
    failures,
    identical,
    mean,
    middle,
    paired_ratios,
    spread,
    time_split,
)
from mmspec.evaluate.shelf import Shelf, card_of
from mmspec.evaluate.vlm_methods import PEER, PLAIN, Method

Results = Mapping[str, Sequence[Sequence[Attempt]]]


def row_of(method: Method, results: Results, shared: dict, greedy: bool) -> dict:
    """The figures of a method. shared: what all rows of the setting have; results: attempts by method, case, repeat."""
    own = results[method.key]
    runs, failed = completed(own), failures(own)
    against = {name: paired_ratios(results[key], own) for name, key in (("hf", PEER), ("ar", PLAIN))}
    return {
        "method": method.title,
        "key": method.key,
        "exact": runs[0].exact if runs else None,
        "drafter": method.drafter,
        "point": method.point,
        "controlled": method.controlled,
        **shared,
        "tokens": middle([run.tokens / len(run.output) for run in runs], 1),
        "target_passes": middle([run.target_passes for run in runs], 1),
        "accept_length": mean([run.accept_length for run in runs]),
        "drafter_passes_per_token": mean([run.drafter_passes * len(run.output) / run.tokens for run in runs]),
        "seconds": middle([run.seconds for run in runs], 4),
        "speedup_vs_ar": middle(against["ar"]),
        "speedup_vs_hf": middle(against["hf"]),
        "spread_vs_ar": spread(against["ar"]),
        "spread": spread(against["hf"]),
        **time_split(runs),
        "parameters": None,
        "training_seconds": None,
        "identical": identical(results[PEER], own) if greedy else None,
        "failed": failed[0].reason if failed else None,
        "requests": len(runs) + len(failed),
        "failed_requests": len(failed),
    }


def training_of(method: Method, shelf: Shelf) -> dict:
    """Parameters of a trained drafter, and the seconds its training took where a card tells."""
    drafter = shelf.drafter(method.drafter)
    size = sum(p.numel() for p in drafter.parameters()) if isinstance(drafter, nn.Module) else None
    return {"parameters": size, "training_seconds": card_of(method.drafter).get("training", {}).get("seconds")}


def compare(methods: Sequence[Method], rows: Mapping[str, dict], results: Results, reference: str) -> None:
    """Adds to the rows of one setting what relates them to one another.

    accept_vs_reference, cost_vs_reference: against the reference drafter's row, where there is one.
    best_fixed, speedup_vs_best_fixed, spread_vs_best_fixed: for a controlled row, against the best of the rows that leave
    the length of the same drafter fixed, plain decoding among them; best by its median against plain decoding.
    """
    other = rows.get(reference)
    for method in methods:
        row = rows[method.key]
        if reference:
            row["accept_vs_reference"] = _ratio(row, other, "accept_length")
            row["cost_vs_reference"] = _ratio(row, other, "drafter_cost_ms")
        if method.controlled:
            fixed = [m.key for m in methods if m.key == PLAIN or m.rivals == method.rivals and not m.controlled]
            row |= _against_best([key for key in fixed if rows[key]["speedup_vs_ar"]], rows, results, method.key)


def _against_best(fixed: Sequence[str], rows: Mapping[str, dict], results: Results, key: str) -> dict:
    best = max(fixed, key=lambda name: rows[name]["speedup_vs_ar"], default=None)
    ratios = paired_ratios(results[best], results[key]) if best else []
    return {
        "best_fixed": best and rows[best]["method"],
        "speedup_vs_best_fixed": middle(ratios),
        "spread_vs_best_fixed": spread(ratios),
    }


def _ratio(row: dict, other: dict | None, name: str) -> float | None:
    if other is None or not row.get(name) or not other.get(name):
        return None
    return round(row[name] / other[name], 3)

"""Bench rows: the figures of one method in one setting, and how they compare with other rows of the setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from mmspec.evaluate.bench import Attempt, Run, completed, failures, middle, paired_ratios, spread
from mmspec.evaluate.shelf import Shelf, card_of
from mmspec.evaluate.vlm_methods import PEER, PLAIN, Method

PARTS = ("draft", "target", "verify", "other")
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
        "accept_length": _mean([run.accept_length for run in runs]),
        "drafter_passes_per_token": _mean([run.drafter_passes * len(run.output) / run.tokens for run in runs]),
        "seconds": middle([run.seconds for run in runs], 4),
        "speedup_vs_ar": middle(against["ar"]),
        "speedup_vs_hf": middle(against["hf"]),
        "spread_vs_ar": spread(against["ar"]),
        "spread": spread(against["hf"]),
        **_time_split(runs),
        "parameters": None,
        "training_seconds": None,
        "identical": _identical(results[PEER], own) if greedy else None,
        "failed": failed[0].reason if failed else None,
        "requests": len(runs) + len(failed),
        "failed_requests": len(failed),
    }


def _time_split(runs: Sequence[Run]) -> dict:
    """Shares of the decode time (the call less the prefill) and milliseconds per round, by part."""
    split = [run for run in runs if run.parts is not None and run.target_passes > 1]
    row: dict = {}
    total = sum(run.seconds - run.parts["prefill"] for run in split)
    rounds = sum(run.target_passes - 1 for run in split)
    for part in PARTS:
        seconds = sum(run.parts[part] for run in split)
        row[f"{part}_share"] = round(seconds / total, 4) if split else None
        row[f"{part}_ms"] = round(1000 * seconds / rounds, 3) if split else None
    row["prefill_ms"] = middle([1000 * run.parts["prefill"] for run in split], 3)
    return row


def training_of(method: Method, shelf: Shelf) -> dict:
    """Parameters of a trained drafter, and the seconds its training took where a card tells."""
    drafter = shelf.drafter(method.drafter)
    size = sum(p.numel() for p in drafter.parameters()) if isinstance(drafter, nn.Module) else None
    return {"parameters": size, "training_seconds": card_of(method.drafter).get("training", {}).get("seconds")}


def _identical(peer: Sequence[Sequence[Attempt]], own: Sequence[Sequence[Attempt]]) -> str | None:
    """How many requests gave the peer's tokens, as "29/30"."""
    pairs = [pair for case in zip(peer, own, strict=True) for pair in zip(*case, strict=True)]
    both = [(a, b) for a, b in pairs if isinstance(a, Run) and isinstance(b, Run)]
    return f"{sum(a.output == b.output for a, b in both)}/{len(both)}" if both else None


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


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None

"""What the tables of `mmspec bench vlm` show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from mmspec.evaluate.columns import Cell, Column, Page, figure, grouped, law, ratio
from mmspec.evaluate.findings import findings
from mmspec.evaluate.suites import suite_of


def _round(row: dict) -> str:
    parts = [row[f"{part}_ms"] for part in ("draft", "target", "verify", "other")]
    return "-" if parts[0] is None else " + ".join(map(str, parts))


# every column a suite can name
COLUMNS: dict[str, Cell] = {
    "method": lambda row: row["method"],
    "law": law,
    "passes": figure("target_passes"),
    "accept length": figure("accept_length"),
    "seconds": figure("seconds"),
    "x plain (10-90 %)": ratio("speedup_vs_ar", "spread_vs_ar"),
    "x transformers (10-90 %)": ratio("speedup_vs_hf", "spread"),
    "ms a round: draft + target + verify + other": _round,
    "verify share": figure("verify_share"),
    "drafter passes a token": figure("drafter_passes_per_token"),
    "prefill ms": figure("drafter_prefill_ms"),
    "step ms": figure("drafter_step_ms"),
    "round ms": figure("drafter_round_ms"),
    "rows": figure("drafter_rows"),
    "parameters": grouped("parameters"),
    "training s": figure("training_seconds"),
    "cost of MSD's": figure("cost_vs_reference"),
    "accept length of MSD's": figure("accept_vs_reference"),
    "best fixed": figure("best_fixed"),
    "x best fixed (10-90 %)": ratio("speedup_vs_best_fixed", "spread_vs_best_fixed"),
    "identical": figure("identical"),
}


def vlm_page(result: dict) -> Page:
    """The page of a bench file."""
    suite = suite_of(result["env"]["suite"])
    columns = tuple(Column(head, COLUMNS[head]) for head in suite.columns)
    return Page(suite.about, columns, settings, (*_same_drafts_notes(result), *findings(result)))


def settings(rows: Sequence[dict]) -> Iterator[tuple[str, list[dict]]]:
    """(title, rows) per task, batch size and temperature, in the order of the rows."""
    for (task, batch, temperature), group in groupby(rows, key=lambda r: (r["task"], r["batch"], r["temperature"])):
        part = list(group)
        first = part[0]
        title = f"{task}, batch {batch}, T = {temperature:g}: {first['prompts']} prompts, "
        if first["natural_end"]:
            title += f"at most {first['limit']} new tokens, mean top-1 probability {first['top1_probability']}"
        else:
            title += (
                f"{first['limit']} new tokens, mean top-1 probability {first['top1_probability']}, "
                f"share of tokens inside the answer {first['answer_share']}"
            )
        yield title, part


def _same_drafts_notes(result: dict) -> list[str]:
    """A sentence per temperature on what each rule accepts of identical drafts."""
    made = []
    for one in result.get("same_drafts", []):
        lengths = one["accept_length"]
        text = one.get("failed") or ", ".join(f"{name} {value}" for name, value in lengths.items())
        made.append(
            f"accept length on identical sampled trees, T = {one['temperature']:g}, {one['prompts']} prompts: {text}"
        )
    return made

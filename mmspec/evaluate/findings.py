"""What a bench shows, in sentences made of its own figures."""

from __future__ import annotations

from collections.abc import Sequence

from mmspec.evaluate.suites import suite_of


def findings(result: dict) -> list[str]:
    """Sentences on the lowest row of each length controller, the best row, and the reference drafter; [] where a suite
    asks for none of it."""
    rows = [row for row in result["rows"] if row["speedup_vs_ar"]]
    reference = suite_of(result["env"]["suite"]).reference
    return [*_controllers(rows), *_best(rows, reference), *_reference(rows, reference)]


def _controllers(rows: Sequence[dict]) -> list[str]:
    """How far below plain decoding and below the best fixed length a controller ever fell."""
    controlled = [row for row in rows if row["controlled"]]
    made = []
    for name, what in (("speedup_vs_ar", "plain decoding"), ("speedup_vs_best_fixed", "the best fixed length")):
        known = [row for row in controlled if row.get(name)]
        if known:
            least = min(known, key=lambda row: row[name])
            made.append(f"goodput against {what}: {least[name]}x at least, over {len(known)} rows ({_where(least)})")
    return made


def _best(rows: Sequence[dict], reference: str) -> list[str]:
    if not reference:
        return []
    first = [row for row in rows if row["task"] == rows[0]["task"]]
    best = max(first, key=lambda row: row["speedup_vs_ar"])
    return [f"fastest: {_where(best)}, {best['speedup_vs_hf']}x transformers, {best['speedup_vs_ar']}x plain decoding"]


def _reference(rows: Sequence[dict], reference: str) -> list[str]:
    """Per setting, the drafters whose drafts are kept less than the reference's."""
    made = []
    for row in rows:
        if row["key"] == reference:
            others = [r for r in rows if _setting(r) == _setting(row) and r.get("accept_vs_reference")]
            fewer = [f"{r['method']} {r['accept_length']}" for r in others if r["accept_vs_reference"] < 1]
            text = ", ".join(fewer) or "none"
            made.append(f"{_where(row)}, accept length {row['accept_length']}; drafters below it: {text}")
    return made


def _where(row: dict) -> str:
    return f"{row['method']}; {row['task']}, batch {row['batch']}, T = {row['temperature']:g}"


def _setting(row: dict) -> tuple:
    return row["task"], row["batch"], row["temperature"]

"""What the package ships of the table: for each class its inputs, the outcome by variant and the reasons of refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.vlm.classes.cells import ENABLED, WAYS
from tests.vlm.classes.pictures import COUNTS

NEAR = "near-tie"  # counts as the same


def outcomes(found: dict | str) -> Iterator[str]:
    """Every outcome below a class, a variant or a prompt."""
    if isinstance(found, str):
        yield found
    else:
        for value in found.values():
            yield from outcomes(value)


def summary(found: dict) -> dict:
    """A class's record as it is shipped.

    inputs: what prompts held where output was the same.   outcomes: by variant same, refused, differs, crashes or
    unrunnable (transformers itself fails), several with a plus.   enable: the same, of a fresh model's first use through
    `mmspec.enable`.   reasons: why, by variant, the first one.
    """
    if "unbuilt" in found:
        return {"unbuilt": found["unbuilt"]}
    variants = {label: _without(cells, {ENABLED}) for label, cells in found["variants"].items()}
    enabled = {label: _without(cells, set(WAYS)) for label, cells in found["variants"].items()}
    reasons = {label: reason for label, cells in variants.items() if (reason := _reason(cells))}
    return {
        "inputs": _inputs(variants),
        "outcomes": {label: "+".join(_words(cells)) for label, cells in variants.items()},
        "enable": {label: "+".join(_words(cells)) for label, cells in enabled.items()},
        "reasons": reasons,
    }


def _without(cells: dict | str, ways: set[str]) -> dict | str:
    """The cells of a variant without some ways of decoding, and without the prompts that have no others."""
    if isinstance(cells, str):
        return cells
    left = {
        kind: row if isinstance(row, str) else {way: entry for way, entry in row.items() if way not in ways}
        for kind, row in cells.items()
    }
    return {kind: row for kind, row in left.items() if row}


def _words(cells: dict | str) -> list[str]:
    words = {text.partition(":")[0].replace(NEAR, "same") for text in outcomes(cells)}
    return sorted(words - {"unrunnable"} or words, key=["same", "refused", "differs", "crashes", "unrunnable"].index)


def _reason(cells: dict | str) -> str:
    told = [text.partition(": ") for text in outcomes(cells)]
    told.sort(key=lambda parts: ["same", NEAR, "unrunnable", "refused", "differs", "crashes"].index(parts[0]))
    return re.sub(r"logits \S+ times as far off as", "logits further off than", told[-1][2])


def _inputs(variants: dict) -> list[str]:
    prompts = {
        kind
        for cells in variants.values()
        if isinstance(cells, dict)
        for kind, ways in cells.items()
        if "same" in set(outcomes(ways))
    }
    return [name for name, has in (("text", prompts - set(COUNTS)), ("images", prompts & set(COUNTS))) if has]

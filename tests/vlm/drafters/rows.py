"""One row of a batch of prompts, as a prompt of its own."""

from __future__ import annotations

from torch import Tensor

from mmspec.vlm.admission import take_apart
from tests.vlm.tiny import IMAGE, tiny


def row_of(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """Row `row` of a "llava" prompt without its padding, with the pictures it shows."""
    counts = ((inputs["input_ids"] == IMAGE).sum(1) // take_apart(tiny("llava")).tokens_per_image).tolist()
    at = inputs["attention_mask"][row] > 0
    own = {name: inputs[name][row : row + 1, at] for name in ("input_ids", "attention_mask")}
    if counts[row]:
        first = sum(counts[:row])
        own["pixel_values"] = inputs["pixel_values"][first : first + counts[row]]
    return own

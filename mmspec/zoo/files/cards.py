"""The card of an embedded model: what it is, what it was trained on, its figures, and the command that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mmspec.core.files import write_json_atomic


def write_card(out: Path, name: str, model: nn.Module, data: str, *, builds: str | None = None, **facts: Any) -> dict:
    """Write `card.json` into `out`, by rename; returns the card.

    data: what the model was trained on, in words.   builds: the zoo's name that `mmspec zoo build` makes it by, where it is
    not `name`.   facts: everything else, in order.
    """
    kind = type(model)
    card = {
        "name": name,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "licence": "Apache-2.0",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": data,
        **facts,
        "command": f"mmspec zoo build {builds or name}",
    }
    write_json_atomic(out / "card.json", card)
    return card


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures of a training to four decimals."""
    return {name: round(value, 4) for name, value in figures.items()}

"""The drafters of the zoo's table."""

from __future__ import annotations

from mmspec.zoo.files.table import MODELS


def drafters_of(target: str) -> list[str]:
    """The names of the text drafters that are trained for a model."""
    rows = MODELS.items()
    return [name for name, row in rows if row.builder == "vlm.build_drafter:build" and row.needs == (target,)]

"""What is told about a trained drafter."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.core.readers import read_json_lines
from mmspec.vlm.drafters.shaped import ShapedDrafter
from mmspec.vlm.training.batches import Batches
from mmspec.vlm.training.recipes import Recipe

if TYPE_CHECKING:
    from mmspec.vlm.training.job import Job


def card_of(
    job: Job,
    recipe: Recipe,
    drafter: ShapedDrafter,
    batches: Batches,
    figures: dict[str, float],
    *,
    target: str,
    licence: str | None,
    data_licence: str | None,
) -> dict[str, Any]:
    """What `card.json` holds: what it is for, what decided it, and its last figures."""
    return {
        "class": f"{type(drafter).__module__}.{type(drafter).__qualname__}",
        "kind": job.kind,
        "target": target,
        "target_licence": licence or "not stated",
        "data_licence": data_licence or "not stated",
        "parameters": sum(p.numel() for p in drafter.parameters()),
        "recipe": job.recipe,
        "loss": job.loss,
        "lr": recipe.lr,
        "steps": job.steps,
        "batch": job.batch,
        "examples": sum(len(places) for _, places in batches.used),
        "curriculum": _curriculum(recipe, batches),
        "answers": recipe.answers,
        "teacher": recipe.teacher,
        "seed": job.seed,
        "training": {name: value for name, value in figures.items() if name != "step"},
    }


def _curriculum(recipe: Recipe, batches: Batches) -> dict[str, Any] | str | None:
    if batches.curriculum is not None:
        return asdict(batches.curriculum)
    return None if recipe.curriculum is None else "left out, as the data holds texts alone or pictures alone"


def log_of(out: Path) -> list[dict[str, Any]]:
    """The lines of the log of a run in `out`, see `TrainingLog`."""
    return read_json_lines(out / "work" / "log.jsonl")

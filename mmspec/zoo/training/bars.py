"""The progress bars of a build: a task, how far it is, and the figures of its last step."""

from __future__ import annotations

from collections.abc import Mapping

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def bars() -> Progress:
    """Bars whose tasks carry a `note`, as `note_of` writes it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )


def note_of(figures: Mapping[str, float]) -> str:
    """The figures of a step in one line."""
    return " ".join(f"{name} {value:.3f}" for name, value in figures.items())

"""Checks of options of the command line."""

from __future__ import annotations

from collections.abc import Iterable


def check_choice(option: str, value: object, known: Iterable[str], purpose: str = "") -> None:
    """Check that the value of an option is among those known; `purpose` is a note on these, such as " for vectors"."""
    known = tuple(known)
    if value not in known:
        raise ValueError(f"{option}: expected one of {', '.join(known)}{purpose}, got {value!r}, pick one of these")

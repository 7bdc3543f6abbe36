"""What every suite of every bench has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from mmspec.evaluate.engine.method import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Methods and settings under one name, as data; domains add theirs.

    about: what meets what, for tables.   methods: the rows, baselines first.   columns: of the domain's, in order.
    The rest unless asked for otherwise.
    """

    about: str
    methods: tuple[Method, ...]
    columns: tuple[str, ...]
    prompts: int
    batches: tuple[int, ...]
    temperatures: tuple[float, ...]


Chosen = TypeVar("Chosen", bound=Suite)


def pick(suites: Mapping[str, Chosen], name: str) -> Chosen:
    """The suite called `name`.   Raises ValueError for an unknown name."""
    if name not in suites:
        raise ValueError(f"--suite: expected one of {', '.join(suites)}, got {name!r}, pick one of these")
    return suites[name]

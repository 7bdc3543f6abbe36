"""What a bench runs on: a model, and everything that belongs to it, each loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Resources:
    """Base of a domain's resources, which add their model and a `name` for tables."""

    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returned when `name` was asked for first."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

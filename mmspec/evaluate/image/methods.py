"""A method `mmspec bench image` compares, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmspec.core.loop import Drafter
from mmspec.evaluate.engine.method import Method
from mmspec.evaluate.image.resources import ImageResources

PLAIN = "ar"


@dataclass(frozen=True, slots=True)
class ImageMethod(Method):
    """make: its drafter, None for plain decoding; what it needs is imported and loaded when called.   rule: as
    `rule_from_name` reads it.   family: rows that differ in one knob, which plots join.   knob: its value.
    """

    make: Callable[[ImageResources], Drafter | None] = lambda resources: None
    knob: float | None = None

    def row(self) -> dict:
        return {
            "method": self.title,
            "key": self.key,
            "family": self.family,
            "knob": self.knob,
            "rule": self.rule,
        }

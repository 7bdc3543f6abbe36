"""A method `mmspec bench continuous` compares, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmspec.evaluate.continuous.resources import ContinuousResources
from mmspec.evaluate.engine.method import Method

PLAIN = "ar"
How = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ContinuousMethod(Method):
    """make: arguments of the pipeline, `decoding` and what goes with it; what they need is imported and loaded when called.
    kind: of the models it is for, "" for all.   gamma: steps a drafted window has.   patch: rejected tokens are put right
    where they stand, so that every window advances by gamma.   bitwise: its tokens are plain decoding's, bit for bit, at any
    temperature.   knob: what a family differs in.
    """

    make: Callable[[ContinuousResources], How] = lambda resources: {}
    kind: str = ""
    gamma: int | None = None
    patch: bool = False
    bitwise: bool = False
    knob: float | None = None

    def row(self) -> dict:
        return {
            "method": self.title,
            "key": self.key,
            "family": self.family,
            "knob": self.knob,
            "gamma": self.gamma,
        }

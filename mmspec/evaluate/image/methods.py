"""The methods that `mmspec bench image` compares, as data."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.core.loop import Drafter
from mmspec.core.rules.base import Rule
from mmspec.evaluate.engine.drawn import DrawnMethod
from mmspec.evaluate.image.resources import ImageResources
from mmspec.imagegen.base_pipeline import auto_decoding
from mmspec.imagegen.request import AUTO
from mmspec.methods import Domain, parse

PLAIN = "ar"


@dataclass(frozen=True, slots=True)
class ImageMethod(DrawnMethod):
    """A row of a bench.

    Attributes:
        decoding: The decoding as text, see `mmspec.methods.parse`.
        domain: Where the decoding is looked for.
    """

    decoding: str = PLAIN
    domain: Domain = "image"

    def make(self, resources: ImageResources) -> Drafter | None:
        """The drafter, None for plain decoding; what it needs is imported and loaded now."""
        if self.decoding == AUTO:
            return auto_decoding()  # it has seen nothing yet, so that what it learns is timed
        return parse(self.decoding, self.domain, "decoding").make(resources)

    def rule_of(self, resources: ImageResources) -> str | Rule | None:
        """The rule, None for the drafter's own."""
        return None if self.rule == "exact" else resources.rule(self.rule)

    def row(self) -> dict:
        return {**DrawnMethod.row(self), "rule": self.rule}

"""The rows and suites of `mmspec bench image`: a decoding as text with a rule, and the defaults of a suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmspec.core.round.loop import Drafter
from mmspec.core.round.rules.base import Rule
from mmspec.evaluate.engine.drawn import DrawnMethod, DrawnSuite
from mmspec.imagegen.base_pipeline import auto_decoding
from mmspec.imagegen.request import AUTO
from mmspec.methods import Domain, parse
from mmspec.run.decoding_options import PLAIN
from mmspec.run.image_models import ImageResources

TIMED = (
    "method", "output", "passes", "step compression", "seconds", "x plain (10-90 %)", "draft + target + verify share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageMethod(DrawnMethod):
    shown: ClassVar[tuple[str, ...]] = (*DrawnMethod.shown, "rule")

    decoding: str = PLAIN  # as text, see `mmspec.methods.parse`
    domain: Domain = "image"  # in which the decoding is registered
    # of its drafter, such as a memory that its requests share
    change: Callable[[Any], Any] | None = field(default=None, kw_only=True)

    def make(self, resources: ImageResources) -> Drafter | None:
        """Return the drafter, None for plain decoding; its parts are imported and loaded now."""
        if self.decoding == AUTO:
            return auto_decoding()  # without any history, so that its learning is timed
        drafter = parse(self.decoding, self.domain, "decoding").make(resources)
        return drafter if self.change is None else self.change(drafter)

    def rule_of(self, resources: ImageResources) -> str | Rule | None:
        """Return the rule, None for the drafter's own."""
        return None if self.rule == "exact" else resources.rule(self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSuite(DrawnSuite):
    """The defaults of a suite of `mmspec bench image`."""

    images: int = 200  # that are judged
    guidance: tuple[float, ...] = (1.0, 4.0)
    top_k: tuple[int, ...] = (0, 1000)
    pictures: int = 1  # of each prompt, one after another

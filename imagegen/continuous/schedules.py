"""Schedules of a target's steps that are not MAR's own: shorter walks, another order, passes that leave something out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.core.keys import Keys
from mmspec.imagegen.continuous.gtr import checkerboard_orders, checkerboard_steps
from mmspec.imagegen.continuous.lazy import Lazy, LazyModel
from mmspec.imagegen.continuous.mar.order import Step
from mmspec.imagegen.continuous.model import MaskedModel
from mmspec.imagegen.continuous.steps import MaskedDecoding
from mmspec.imagegen.continuous.target import MaskedTarget
from mmspec.imagegen.continuous.walk import HeadWalk


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules(MaskedDecoding):
    """A decoding whose parts can each be switched on.

    walk: how heads are walked, see `HeadWalk`.   reconstruct: None for MAR's order; else a checkerboard first and the
    cells between it in as many steps, see `checkerboard_steps`.   lazy: None runs every pass whole, else see `Lazy`.
    Raises ValueError for a lazy that is none.
    """

    walk: HeadWalk = field(default_factory=HeadWalk)
    reconstruct: int | None = None
    lazy: Lazy | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.lazy, Lazy | None):
            raise ValueError(f"lazy: expected None or a Lazy, got {self.lazy!r}; write Lazy(5, 9)")

    @property
    def parts(self) -> list[str]:
        """What is switched on, as tables print it."""
        annealing = self.walk.annealing
        named = (
            f"head window {self.walk.window}" if self.walk.window > 1 else "",
            f"annealed {annealing.first}-{annealing.last}" if annealing else "",
            f"checkerboard {self.reconstruct}" if self.reconstruct else "",
            self.lazy.name if self.lazy else "",
        )
        return [name for name in named if name]

    @property
    def plain(self) -> bool:
        """Whether the target alone would draw every image with the law of plain decoding."""
        return self.walk.exact and self.reconstruct is None and (self.lazy is None or self.lazy.plain)

    def orders(self, keys: Keys, total: int) -> Tensor:
        if self.reconstruct is None:
            return MaskedDecoding.orders(self, keys, total)
        return checkerboard_orders(keys, math.isqrt(total))

    def steps(self, total: int, num_iter: int) -> tuple[Step, ...]:
        if self.reconstruct is None:
            return MaskedDecoding.steps(self, total, num_iter)
        return checkerboard_steps(math.isqrt(total), num_iter, self.reconstruct)

    def target(self, model: MaskedModel, labels: Tensor, **settings: Any) -> MaskedTarget:
        return MaskedTarget(self.cached(model), labels, walk=self.walk, **settings)

    def cached(self, model: MaskedModel) -> MaskedModel:
        """The model for one request, target or drafter."""
        return model if self.lazy is None else LazyModel(model, self.lazy)

"""Decodings with schedules that are not MAR's: fewer denoising steps, another order, cached features."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mmspec.core.round.keys import Keys
from mmspec.core.round.rules.base import Rule
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.imagegen.continuous.masked_decoding import MaskedDecoding, OwnDraw, PlainSteps
from mmspec.imagegen.continuous.masked_target import MaskedModel, MaskedTarget
from mmspec.imagegen.continuous.schedules.feature_cache import FeatureCachedModel, Lazy
from mmspec.imagegen.continuous.schedules.generation_order import (
    GenerationStep,
    checkerboard_orders,
    checkerboard_steps,
)
from mmspec.io.validation import check_fields
from mmspec.methods import MethodParts, method, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules(MaskedDecoding):
    head_sampling: HeadSampling = field(default_factory=HeadSampling)
    reconstruct: int | None = None  # steps, see `checkerboard_steps`; None for MAR's order
    lazy: Lazy | None = None  # None for complete passes

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.lazy, Lazy | None):
            raise ValueError(f"lazy: expected None or a Lazy, got {self.lazy!r}; pass Lazy(5, 9)")

    @property
    def parts(self) -> list[str]:
        annealing = self.head_sampling.annealing
        names = (
            f"head window {self.head_sampling.window}" if self.head_sampling.window > 1 else "",
            f"annealed {annealing.first}-{annealing.last}" if annealing else "",
            f"checkerboard {self.reconstruct}" if self.reconstruct else "",
            self.lazy.name if self.lazy else "",
        )
        return [name for name in names if name]

    @property
    def plain(self) -> bool:
        """Whether the target alone would draw every image from the distribution of plain decoding."""
        return self.head_sampling.exact and self.reconstruct is None and (self.lazy is None or self.lazy.plain)

    def orders(self, keys: Keys, total: int) -> Tensor:
        if self.reconstruct is None:
            return MaskedDecoding.orders(self, keys, total)
        return checkerboard_orders(keys, math.isqrt(total))

    def steps(self, total: int, num_iter: int) -> tuple[GenerationStep, ...]:
        if self.reconstruct is None:
            return MaskedDecoding.steps(self, total, num_iter)
        return checkerboard_steps(math.isqrt(total), num_iter, self.reconstruct)

    def target(self, model: MaskedModel, labels: Tensor, **settings: Any) -> MaskedTarget:
        return MaskedTarget(self.cached(model), labels, head_sampling=self.head_sampling, **settings)

    def cached(self, model: MaskedModel) -> MaskedModel:
        return model if self.lazy is None else FeatureCachedModel(model, self.lazy)


class ScheduledDraw(OwnDraw):
    """The target's own draws under a schedule that is not plain decoding's. Relaxed."""

    name = "own draw, scheduled (relaxed)"
    exact = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSteps(PlainSteps, Schedules):
    """Steps of the target alone, see `Schedules`. Exact with speculation over head time alone; else relaxed."""

    @property
    def name(self) -> str:
        return ", ".join(self.parts) or "none"

    @property
    def exact(self) -> bool:
        """Whether every image has the distribution of plain decoding."""
        return self.plain

    def rule(self, model: MaskedModel) -> Rule:
        return OwnDraw() if self.exact else ScheduledDraw()


def schedules_of(
    parts: MethodParts,
    head: int = 1,
    annealing: str | None = None,
    checkerboard: int | None = None,
    lazy: str | None = None,
) -> dict[str, Any]:
    annealed = value_of(annealing, "continuous", "schedule", parts)
    cached = value_of(lazy, "continuous", "schedule", parts)
    return {"head_sampling": HeadSampling(head, annealed), "reconstruct": checkerboard, "lazy": cached}


@method(
    "scheduled",
    domain="continuous",
    kind="decoding",
    title="schedules",
    exact=False,
    models=("masked",),
    order=5,
    shown_at="annealing=anneal,lazy=lazy",
    about="the target alone with fewer denoising steps, a checkerboard or cached features",
)
def scheduled(
    parts: MethodParts,
    head: int = 1,
    annealing: str | None = None,
    checkerboard: int | None = None,
    lazy: str | None = None,
) -> ScheduledSteps:
    """`ScheduledSteps` with the named schedules.

    Args:
        parts: The model and its head, "head".
        head: The number of states that a call of the head evaluates per token; more than 1 is exact.
        annealing: The schedule of denoising steps, such as anneal or (anneal:first=50,last=5).
        checkerboard: The steps for the cells between a checkerboard, which is filled first; none for MAR's order.
        lazy: The schedule of cached features, such as lazy or lazy:tokens=0.1.
    """
    return ScheduledSteps(**schedules_of(parts, head, annealing, checkerboard, lazy))

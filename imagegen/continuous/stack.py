"""Decoding without drafted tokens, as fast as a stack of schedules makes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from mmspec.core.draft import Draft
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.rules.base import Rule
from mmspec.core.verdict import Verdict
from mmspec.imagegen.continuous.gtr import checkerboard_orders, checkerboard_steps
from mmspec.imagegen.continuous.lazy import LazyNull
from mmspec.imagegen.continuous.mar.order import Step
from mmspec.imagegen.continuous.model import MaskedModel
from mmspec.imagegen.continuous.steps import MaskedDecoding, OwnDraw
from mmspec.imagegen.continuous.target import MaskedTarget
from mmspec.imagegen.continuous.walk import HeadWalk


class ScheduledDraw(OwnDraw):
    """The target's own draws under a schedule that is not plain decoding's. Relaxed."""

    name = "own draw, scheduled (relaxed)"
    exact = False


@dataclass(frozen=True, slots=True)
class ScheduledSteps(MaskedDecoding):
    """Steps of the target alone. With speculation over head time and nothing else exact; else relaxed.

    walk: how the head is walked, see `HeadWalk`.   reconstruct: None for MAR's order; else a checkerboard first and the
    cells between it in as many steps, see `checkerboard_steps`.   lazy: None runs both branches of guidance in every pass;
    else the full passes at first and the distance of those after them, (5, 9) in the paper, see `LazyNull`.
    """

    walk: HeadWalk = field(default_factory=HeadWalk)
    reconstruct: int | None = None
    lazy: tuple[int, int] | None = None
    passes = 0

    @property
    def name(self) -> str:
        """What tables print."""
        parts = [
            f"head window {self.walk.window}" if self.walk.window > 1 else "",
            f"annealed {self.walk.annealing.first}-{self.walk.annealing.last}" if self.walk.annealing else "",
            f"checkerboard {self.reconstruct}" if self.reconstruct else "",
            f"lazy {self.lazy[0]}-{self.lazy[1]}" if self.lazy else "",
        ]
        return ", ".join(filter(None, parts)) or "none"

    @property
    def exact(self) -> bool:
        """Whether every image has the law of plain decoding."""
        return self.walk.exact and self.reconstruct is None and (self.lazy is None or self.lazy[1] == 1)

    def rule(self, model: MaskedModel) -> Rule:
        return OwnDraw() if self.exact else ScheduledDraw()

    def orders(self, keys: Keys, total: int) -> Tensor:
        return (
            MaskedDecoding.orders(self, keys, total)
            if self.reconstruct is None
            else checkerboard_orders(keys, math.isqrt(total))
        )

    def steps(self, total: int, num_iter: int) -> tuple[Step, ...]:
        if self.reconstruct is None:
            return MaskedDecoding.steps(self, total, num_iter)
        return checkerboard_steps(math.isqrt(total), num_iter, self.reconstruct)

    def target(self, model: MaskedModel, labels: Tensor, **settings: object) -> MaskedTarget:
        model = model if self.lazy is None else LazyNull(model, *self.lazy)
        return MaskedTarget(model, labels, walk=self.walk, **settings)

    def open(self, target: MaskedTarget) -> ScheduledSteps:
        return self

    def propose(self, target: MaskedTarget, keys: Keys) -> Draft:
        return target.ask(target.next_positions())

    def observe(self, target: MaskedTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        return None

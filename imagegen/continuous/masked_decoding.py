"""Plain decoding of masked tokens, and the base class of every decoding of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.core.loop import Memoryless
from mmspec.core.rules.base import Rule, Weights
from mmspec.imagegen.continuous.masked_target import MaskedModel, MaskedTarget, TokenEvidence
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep, cosine_steps, random_orders


class MaskedDecoding(ABC):
    """A drafter of masked tokens, which brings the rule it falls under, and may bring an order, steps and a target of its
    own."""

    __slots__ = ()

    def orders(self, keys: Keys, total: int) -> Tensor:
        """int64 [B, total], consumed from its end: MAR's, uniform."""
        return random_orders(keys, total)

    def steps(self, total: int, num_iter: int) -> tuple[GenerationStep, ...]:
        """The plan of plain decoding: MAR's, which the cosine gives."""
        return cosine_steps(total, num_iter)

    def target(self, model: MaskedModel, labels: Tensor, **settings: Any) -> MaskedTarget:
        """The target of a request; settings as `MaskedTarget` takes them."""
        return MaskedTarget(model, labels, **settings)

    @abstractmethod
    def rule(self, model: MaskedModel) -> Rule:
        """The rule that judges its drafts on `model`."""


class PlainSteps(Memoryless, MaskedDecoding):
    """Drafts nothing: asks for the positions of the next step, and the target draws them all."""

    name = "none"

    def rule(self, model: MaskedModel) -> Rule:
        return OwnDraw()

    def propose(self, target: MaskedTarget, keys: Keys) -> Draft:
        return target.open_draft(target.next_positions())


class OwnDraw(Rule):
    """Every open position takes the target's own draw: the target alone, step by step. Exact, as nothing is drafted."""

    name = "exact"
    exact = True
    proven_for = frozenset({("none", "none")})
    reads = "mean"

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        return Weights(torch.zeros(draft.value.shape[:2], device=draft.value.device), "mask")

    def resample(
        self, evidence: TokenEvidence, draft: Draft, weights: Weights, verdict: Verdict, keys: Keys
    ) -> Verdict:
        verdict.correction = evidence.own
        return verdict

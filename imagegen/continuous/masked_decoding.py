from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Verdict
from mmspec.core.round.keys import Keys
from mmspec.core.round.loop import Memoryless
from mmspec.core.round.rules.base import Rule, UnsupportedCombination, Weights
from mmspec.imagegen.continuous.head_sampling.sampling import KeyedNoise
from mmspec.imagegen.continuous.masked_target import MaskedModel, MaskedTarget, TokenEvidence
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep, cosine_steps, random_orders
from mmspec.imagegen.user_code import check_code

Prepared = tuple[MaskedTarget, "MaskedDecoding", Rule]


class MaskedDecoding(ABC):
    """A drafter of masked tokens. It brings its rule, and may bring its own order, steps and target."""

    __slots__ = ()

    def prepare(self, model: MaskedModel, request: Any) -> Prepared:
        if not isinstance(self, PlainSteps):
            check_code(model)
        rule, wish = self.rule(model), request.rule
        if isinstance(wish, Rule):
            rule = wish
        elif wish not in (None, rule.name):
            raise UnsupportedCombination(
                f"rule: expected no rule or {rule.name!r}, which verifies decoding {self.name!r}, "
                f"got {wish!r}; leave it out"
            )
        keys, labels, head = request.keys, request.condition, model.head(request.num_sampling_steps)
        order, noise = request.order, request.noise
        order = self.orders(keys, model.total) if order is None else _checked_order(order, len(labels), model.total)
        noise = KeyedNoise(keys, head.steps, head.dim) if noise is None else noise
        size = getattr(noise, "steps", None), getattr(noise, "dim", None)
        if size != (head.steps, head.dim):
            raise ValueError(
                f"noise: expected {head.steps} steps of {head.dim} values, got {size[0]} of {size[1]}; "
                "draw it for this head"
            )
        target = self.target(
            model,
            labels,
            num_sampling_steps=request.num_sampling_steps,
            steps=request.steps,
            guidance=request.guidance_scale,
            temperature=request.temperature,
            order=order.to(model.device, torch.long),
            noise=noise,
            listener=request.listener,
            keys=keys,
        )
        return target, self, rule

    def orders(self, keys: Keys, total: int) -> Tensor:
        """Return int64 [B, total], consumed from its end: MAR's uniformly random order."""
        return random_orders(keys, total)

    def steps(self, total: int, num_iter: int) -> tuple[GenerationStep, ...]:
        """Return the plan of plain decoding, MAR's cosine."""
        return cosine_steps(total, num_iter)

    def target(self, model: MaskedModel, labels: Tensor, **settings: Any) -> MaskedTarget:
        """Return the target of a request; the settings are those of `MaskedTarget`."""
        return MaskedTarget(model, labels, **settings)

    @abstractmethod
    def rule(self, model: MaskedModel) -> Rule:
        """Return the rule of this decoding's drafts on `model`."""


def _checked_order(order: Tensor, rows: int, total: int) -> Tensor:
    if not isinstance(order, Tensor):
        raise ValueError(f"order: expected an integer tensor of shape [{rows}, {total}], got {order!r:.60}; pass one")
    has_shape = order.shape == (rows, total) and not order.is_floating_point()
    if not has_shape or not torch.equal(order.sort(-1).values.cpu(), torch.arange(total).expand(rows, -1)):
        raise ValueError(
            f"order: expected a permutation of 0..{total - 1} for each of {rows} rows, got "
            f"{tuple(order.shape)} of {order.dtype}; give each position once"
        )
    return order


class PlainSteps(Memoryless, MaskedDecoding):
    """Plain decoding: it drafts nothing and asks for the positions of the next step, which the target draws."""

    name = "none"

    def rule(self, model: MaskedModel) -> Rule:
        return OwnDraw()

    def propose(self, target: MaskedTarget, keys: Keys) -> Draft:
        return target.open_draft(target.next_positions())


class OwnDraw(Rule):
    """The rule of plain decoding: every open position gets the target's own draw. Exact, as nothing is drafted."""

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

"""Decodings of masked tokens: the settings of a request, the base class, and plain decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Evidence, Verdict
from mmspec.core.keys import Keys
from mmspec.core.loop import Memoryless
from mmspec.core.rules.base import Rule, UnsupportedCombination, Weights
from mmspec.imagegen.continuous.head_sampling.sampling import KeyedNoise, Noise
from mmspec.imagegen.continuous.masked_target import MaskedModel, MaskedTarget, Schedule, TokenEvidence, TokenGuidance
from mmspec.imagegen.continuous.schedules.generation_order import GenerationStep, cosine_steps, random_orders
from mmspec.imagegen.request import AUTO, PipelineRequest, derived
from mmspec.io.validation import LARGEST_SCALE, number

Prepared = tuple[MaskedTarget, "MaskedDecoding", Rule]


class MaskedDecoding(ABC):
    """A drafter of masked tokens. It brings its rule, and may bring an order, steps and a target of its own."""

    __slots__ = ()

    def prepare(self, model: MaskedModel, request: MARRequest) -> Prepared:
        """The target, the drafter and the rule of a resolved request.

        Raises ValueError for another rule than the decoding's own, and for an order or noise of another shape.
        """
        rule, given = self.rule(model), request.rule
        if isinstance(given, Rule):
            rule = given
        elif given not in (None, rule.name):
            raise UnsupportedCombination(f"rule: expected it left out or {rule.name!r}, by which decoding {self.name!r} is "
                                         f"verified, got {given!r}; drop it")  # fmt: skip
        keys, labels, head = request.keys, request.condition, model.head(request.num_sampling_steps)
        order, noise = request.order, request.noise
        order = self.orders(keys, model.total) if order is None else _checked_order(order, len(labels), model.total)
        noise = KeyedNoise(keys, head.steps, head.dim) if noise is None else noise
        size = getattr(noise, "steps", None), getattr(noise, "dim", None)
        if size != (head.steps, head.dim):
            raise ValueError(f"noise: expected {head.steps} steps of {head.dim} values, got {size[0]} of {size[1]}; "
                             "draw it for this head")  # fmt: skip
        target = self.target(model, labels, num_sampling_steps=request.num_sampling_steps, steps=request.steps,
                             guidance=request.guidance_scale, temperature=request.temperature,
                             order=order.to(model.device, torch.long), noise=noise, listener=request.listener,
                             keys=keys)  # fmt: skip
        return target, self, rule

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
        """The rule of its drafts on `model`."""


def _checked_order(order: Tensor, rows: int, total: int) -> Tensor:
    if not isinstance(order, Tensor):
        raise ValueError(f"order: expected an integer tensor of shape [{rows}, {total}], got {order!r:.60}; pass one")
    sound = order.shape == (rows, total) and not order.is_floating_point()
    if not sound or not torch.equal(order.sort(-1).values.cpu(), torch.arange(total).expand(rows, -1)):
        raise ValueError(f"order: expected a permutation of 0..{total - 1} for each of {rows} rows, got "
                         f"{tuple(order.shape)} of {order.dtype}; give each position once")  # fmt: skip
    return order


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


@dataclass(frozen=True, kw_only=True)
class MARRequest(PipelineRequest):
    """The settings of a request to a `MARPipeline`.

    decoding: None decodes plainly through the same loop: the target alone, several tokens a pass. So does "auto": decodings
        that spare passes of masked models are relaxed, and never taken unasked.
    rule: None for the decoding's own; "exact" is the rule of plain decoding.
    guidance_scale: s, see `TokenGuidance`; at 1 only the conditional branch runs. None for the pipeline's default.
    guidance_schedule: "linear" or "constant"; None for the pipeline's default.
    temperature: scales the noise of every denoising step; 0 leaves the initial noise alone.
    num_iter: passes over the image; None for the pipeline's default.
    num_sampling_steps: of the diffusion head, see `kept_timesteps`; None for the model's own.
    order: int64 [B, L], a permutation of the positions a row, consumed from its end; None to draw it from the seed.
    noise: None to draw it from the seed, see `GivenNoise`.
    """

    decoding: MaskedDecoding | Literal["auto"] | None = None
    guidance_scale: float | TokenGuidance | None = None
    guidance_schedule: Schedule | None = None
    temperature: float = 1.0
    num_iter: int | None = None
    num_sampling_steps: str | int | None = None
    order: Tensor | None = None
    noise: Noise | None = None
    steps: tuple[GenerationStep, ...] = derived()

    def resolved(self, pipe: Any, prompts: object) -> Self:
        model, decoding, guidance = pipe.model, self.decoding, self.guidance_scale
        decoding = PlainSteps() if decoding in (None, AUTO) else decoding
        if not isinstance(decoding, MaskedDecoding):
            raise ValueError(f"decoding: expected None, 'auto' or a decoding of masked tokens, got {decoding!r}; leave it "
                             "out or make one")  # fmt: skip
        temperature = number("temperature", self.temperature, 0, LARGEST_SCALE)
        if not isinstance(guidance, TokenGuidance):
            scale = number("guidance_scale", pipe.guidance_scale if guidance is None else guidance, 0, LARGEST_SCALE)
            guidance = TokenGuidance(scale, self.guidance_schedule or pipe.guidance_schedule)
        elif self.guidance_schedule is not None:
            raise ValueError(f"guidance_schedule: expected it left out beside a TokenGuidance, got "
                             f"{self.guidance_schedule!r}; name it there")  # fmt: skip
        steps = decoding.steps(model.total, pipe.num_iter if self.num_iter is None else self.num_iter)
        labels = model.prepare(prompts)
        return self.with_rows(labels, len(labels), model.device, decoding=decoding, temperature=temperature,
                              guidance_scale=guidance, steps=steps)  # fmt: skip

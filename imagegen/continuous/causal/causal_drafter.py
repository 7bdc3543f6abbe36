"""A smaller causal model that drafts the next tokens, under the target's own noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, root_only
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.pool import SlotPool
from mmspec.core.round.tree import chain
from mmspec.imagegen.continuous.causal.target import CausalTarget
from mmspec.imagegen.continuous.causal.transformer import CausalTransformer
from mmspec.imagegen.continuous.head_sampling.head import Head
from mmspec.io.validation import Size, check_fields
from mmspec.methods import MethodParts, method


@dataclass(frozen=True, slots=True)
class SmallCausal:
    """Drafts chains of tokens with a smaller causal model ("Accelerated Diffusion Models via Speculative Sampling").
    Exact under the rules "gaussian_block" and "reflection". Given the shared noise, each token is a Gaussian of the
    last step, of the same scale where a table gives it; the rules couple both. The pipeline refuses temperature 0."""

    model: CausalTransformer
    length: Size = 4

    __post_init__ = check_fields

    @property
    def name(self) -> str:
        return f"small_causal_{self.length}"

    def open(self, target: CausalTarget) -> SmallCausalState:
        head = self.model.head(target.head.steps)
        if any(each.network_variance or not each.last_noise for each in (target.head, head)):
            raise ValueError(
                "drafter: expected heads whose last step is drawn with a scale from a table, got others; use "
                "head 'sde' with span 1, or decode plainly"
            )
        return SmallCausalState(self, target, head)


class SmallCausalState:
    """Between rounds the cache holds the class and the committed tokens before the root."""

    every_round = True  # the small model never reads a token behind which it did not draft

    def __init__(self, settings: SmallCausal, target: CausalTarget, head: Head):
        self.model, self.length, self.head, self.passes = settings.model, settings.length, head, 0
        self.cache = SlotPool(self.model.config.depth, target.total + 64, copies=target.copies)
        self._feed(self.model.embed(target.branches), torch.zeros(1, dtype=torch.long, device=target.device))

    def propose(self, target: CausalTarget, keys: Keys) -> Draft:
        length = max(room := target.rooms(self.length))
        if length < 1:
            return root_only(target.pending)
        values, laws = [target.pending], []
        noise = keys.normal(Purpose.DRAFT, length, target.pending.shape[-1])
        for number in range(length):
            mean, scale = law = self._law(target, self._read(target, values[-1], number), number)
            laws.append(law)
            values.append(mean + scale * noise[:, number])
        self._read(target, values[-1], length)  # if all drafts are accepted, the next round starts from the last
        row = torch.tensor([*range(length), -1], device=target.device)
        mean, scale = (torch.stack(part, 1) for part in zip(*laws, strict=True))
        law = Law("without_replacement", row, mean=mean, scale=scale)
        # a row ends with a token of the target's own, whatever the other rows still lack
        valid = torch.arange(length + 1, device=target.device) <= torch.tensor(room, device=target.device)[:, None]
        return Draft(torch.stack(values, 1), chain(length, target.device), law, valid)

    def _read(self, target: CausalTarget, value: Tensor, number: int) -> Tensor:
        """Return z [C * B, width] behind the token `number` places behind the root."""
        position = (target.last + number + 1).clamp(max=target.total - 1)[:, None].repeat(target.copies, 1)
        x = self.model.token_embed(value.to(self.model.position.dtype))[:, None].repeat(target.copies, 1, 1)
        return self._feed(x, position)

    def _feed(self, x: Tensor, position: Tensor) -> Tensor:
        bias = None if self.cache.uniform else self.cache.bias(chain(0, x.device).ancestor, x.dtype)
        z = self.model(x, position, bias, self.cache)
        self.cache.advance(1)
        self.passes += 1
        return z[:, 0]

    def _law(self, target: CausalTarget, z: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return the mean [B, d] and the scale [B, 1] of the next token."""
        index = (target.last + number + 1).clamp(max=target.total - 1)[:, None]
        last = target.draw(self.head, z[:, None], index).last
        return last.mean, last.log_scale[:, :1].exp() * target.temperature

    def observe(self, target: CausalTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        # the class and the tokens before the root; a smaller length discards the rest
        self.cache.length = (target.last + 1).repeat(target.copies)
        self.cache.lengths = self.cache.length.tolist()


@method(
    "small",
    domain="continuous",
    kind="decoding",
    title="small causal",
    exact=True,
    models=("causal",),
    needs=("draft",),
    rule="gaussian_block",
    about="a smaller causal model drafts tokens",
    order=4,
    paper="Accelerated Diffusion Models via Speculative Sampling",
)
def small(parts: MethodParts, gamma: int = 4) -> SmallCausal:
    """`SmallCausal` with the smaller model of a model.

    Args:
        parts: The model and the smaller model, "draft".
        gamma: The tokens of a draft.
    """
    return SmallCausal(parts.part("draft").model.transformer, gamma)

"""One request of a feature drafter: its cache, its positions, and the drafts it proposes."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.placement import alongside
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.slots import Slots


class FeatureState(PairState):
    """Keeps the slots of committed pairs (h_j, e_{j+1}) in a cache of its own.

    Three counters, none derived from another: committed ids are the target's, `cache.lengths` counts slots (fewer than ids
    where pictures are compressed), `next_position` is the position of the next slot.
    pictures: bool [B, R], which of the first cache slots come from pictures; None before the prompt is read.
    latest: what the last pass attended from, and its positions; right behind `ready`, the pass over committed pairs.
    """

    def __init__(self, drafter: object, target: object):
        super().__init__(alongside(drafter, target.parts.embed.weight), target)
        self.ruling = torch.zeros(target.parts.vocab_size, device=target.device)
        self.ruling[list(target.parts.placeholders)] = -torch.inf
        self.ruling = target.processors.suppress(self.ruling)
        self.cache = SlotCache(1, 0)
        self.rotary = self.context = None
        self.pictures: Tensor | None = None
        self.latest: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompt: all its pairs but the last, whose next token came with the first pass."""
        target, view = self.target, self.view()
        slots = self.drafter.read(view)
        count = slots.attend.shape[1]
        # room for what will be generated; the pool doubles when that is not enough
        self.cache.capacity = count + target.cache.capacity - target.prompt.shape[1] + 64
        self.next_position, self.context = torch.zeros_like(slots.next_position), slots.last_context
        self.pictures = slots.of_pictures(view.picture)
        if self.context is not None:
            self.context = self.context[:, None]
        self._reach(slots.attend.dtype)
        self.fill(slots)
        self.next_position = slots.next_position

    def view(self) -> PromptView:
        """What may be read of the prompt."""
        target = self.target
        return PromptView.of(
            target.prompt, target.prompt_embeds, target.prompt_hidden, target.parts.placeholders,
            target.parts.tokens_per_image, target.padding,
        )  # fmt: skip

    def fill(self, slots: Slots) -> None:
        """Writes a view's slots behind those the cache holds."""
        self.remember(slots.attend, self.rotary[self.next_position[:, None] + slots.position], slots.count)

    @property
    def slots_ahead(self) -> int:
        """How many positions behind the pending token a draft's slots can have."""
        return self.shape.longest

    def _reach(self, dtype: torch.dtype) -> None:
        """Makes rotary rows for every position the next draft can have."""
        target = self.target
        needed = target.prompt.shape[1] + max(map(len, target.tokens)) + self.slots_ahead + 1
        if self.rotary is None or self.rotary.shape[0] < needed:
            self.rotary = self.drafter.layer.rotary(2 * needed + 512, target.device, dtype)

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        attend, carry = self.drafter.fuse(self.target.parts.embed(value), hidden, self.context)
        self._reach(attend.dtype)
        position = self.next_position[:, None] + ahead
        self.latest = attend, position
        self.passes += 1
        bias = self.bias(ancestor, back, attend.dtype)
        return self.drafter.forward(attend, carry, self.rotary[position], self.cache, bias)

    def ready(self) -> None:
        if self.next_position is None:
            self.prefill()
        super().ready()

    @property
    def deepest(self) -> int:
        most = self.drafter.most_levels
        return super().deepest if most is None else min(super().deepest, most)

    def most_levels(self) -> int:
        return min(super().most_levels(), self.deepest)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """float32 [..., V] of predicted features, visual placeholders ruled out.   depth: of the children, from 1."""
        return self.drafter.logits(out, depth, self.target.parts.head) + self.ruling

    def law(self, out: Tensor, depth: int) -> Tensor:
        """Log-weights a sampled request draws from: `logits` as the target warps its own."""
        return self.target.processors.warp(self.logits(out, depth))

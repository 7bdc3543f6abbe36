"""One request of a feature drafter: its cache, its positions, and the drafts it proposes."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
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
        like = torch.empty(0, dtype=target.parts.embed.weight.dtype, device=target.device)
        super().__init__(alongside(drafter, like), target)
        self.cache = SlotCache(1, 0)
        self.rotary = self.context = None
        self.pictures: Tensor | None = None
        self.latest: tuple[Tensor, Tensor] | None = None

    def serve(self, target: object) -> None:
        super().serve(target)
        ruling = torch.zeros(target.parts.vocab_size, device=target.device)
        ruling[list(target.parts.placeholders)] = -torch.inf
        self.ruling = target.processors.suppress(ruling)

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompt: all its pairs but the last, whose next token came with the first pass."""
        target, view = self.target, self.view()
        slots = self.drafter.read(view)
        # room for what will be generated; the pool doubles when that is not enough
        self.cache.capacity = slots.attend.shape[1] + target.cache.capacity - target.prompt.shape[1] + 64
        self.next_position = torch.zeros_like(slots.next_position)
        self._append(view, slots)

    @torch.no_grad()
    def follow(self, target: object) -> Self:
        """This state for a request that goes on where its own has ended: only what the new prompt adds is read.

        A pair whose second token is no longer the prompt's is forgotten. Slots hold what they would after the whole prompt,
        but for what a drafter makes of all of it at once (which branch SpecVLM's gate chooses).
        """
        if self.next_position is None:
            self.prefill()
        if self.pending_features:
            self.catch_up()
        self.rewind(target.turn.forget)
        self.serve(target)
        view = self.view()
        self._append(view, self.drafter.read(view))
        return self

    def unread(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the target's prompt adds to the pairs kept: ids int64 [B, n], embeddings and states [B, n, .]; without earlier
        turns all of it. Pairs are a token's state and the next token with its embedding, so the first embedding is of none."""
        target, turn = self.target, getattr(self.target, "turn", None)
        ids, embeds, hidden = target.prompt, target.prompt_embeds, target.prompt_hidden
        if turn is None or not turn.start:
            return ids, embeds, hidden
        if turn.before is None:
            return ids[:, turn.start :], embeds, hidden
        # the state behind the last token held, and the token that now follows it
        return ids[:, turn.start - 1 :], F.pad(embeds, (0, 0, 1, 0)), torch.cat([turn.before, hidden], 1)

    def view(self) -> PromptView:
        """The pairs that are unread."""
        target, (ids, embeds, hidden) = self.target, self.unread()
        parts, padding = target.parts, target.padding if ids.shape == target.prompt.shape else None
        view = PromptView.of(ids, embeds, hidden, parts.placeholders, parts.tokens_per_image, padding)
        if self.pictures is not None:
            view.shown = bool(self.pictures.any())
            view.context = None if self.context is None else self.context[:, 0]
        return view

    def fill(self, slots: Slots) -> None:
        """Writes a view's slots behind those the cache holds."""
        self.remember(slots.attend, self.rotary[self.next_position[:, None] + slots.position], slots.count)

    @property
    def slots_ahead(self) -> int:
        """How many positions behind the pending token a draft's slots can have."""
        return self.shape.longest

    def _append(self, view: PromptView, slots: Slots) -> None:
        """Takes up what was read of a view."""
        before = self.cache.width
        self._reach(slots.attend.dtype)
        self.fill(slots)
        self.next_position = self.next_position + slots.next_position
        shown = slots.of_pictures(view.picture)
        if self.pictures is not None:
            earlier = F.pad(self.pictures, (0, before - self.pictures.shape[1]))  # cut where the cache was
            shown = torch.cat([earlier, shown], 1)
        self.pictures = shown
        if slots.last_context is not None:
            self.context = slots.last_context[:, None]

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

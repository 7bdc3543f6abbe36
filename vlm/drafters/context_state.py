"""One request of a block-parallel drafter: context keys and values that only grow, and the block of the round."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.vlm.drafters.after_head import AfterHead
from mmspec.vlm.drafters.context_layer import biases
from mmspec.vlm.drafters.feature_state import FeatureState
from mmspec.vlm.drafters.prompt_view import pictures
from mmspec.vlm.drafters.table_rows import table_rows


class ContextState(FeatureState):
    """Keeps keys and values of one context slot for each committed token; a block's are written behind them and never counted,
    so that nothing has to be taken back.

    rows: [B, D, H], the rows of the block behind the pending token.   unary: float32 [B, D, V], what the head says of them.
    """

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.cache = SlotCache(drafter.config.num_hidden_layers, 0)
        self.after = AfterHead.of(target.parts)
        self.rows: Tensor | None = None
        self.unary: Tensor | None = None

    @property
    def independent(self) -> bool:
        return self.drafter.independent

    @property
    def slots_ahead(self) -> int:
        return self.drafter.config.block_size

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompt but for its last token, whose states come with the first pass."""
        target, drafter = self.target, self.drafter
        spare = target.cache.capacity - target.prompt.shape[1] + 64 + drafter.config.block_size
        self.cache.capacity = target.prompt.shape[1] + spare
        self.next_position = torch.zeros(target.batch, dtype=torch.long, device=target.device)
        self._append(None if target.padding is None else ~target.padding[:, :-1])

    @torch.no_grad()
    def follow(self, target: object) -> Self:
        """See `FeatureState.follow`; a slot is a token's own, so none of those the target holds is read again."""
        if self.next_position is None:
            self.prefill()
        if self.pending_features:
            self.take_in()
        self.rewind(target.turn.forget - (target.turn.before is not None))
        self.serve(target)
        self.rows = self.unary = self.root = None
        self._append(None)
        return self

    def _append(self, real: Tensor | None) -> None:
        """Adds the context of what the target's prompt adds.   real: bool [B, n], where that is no padding."""
        target, states = self.target, self.target.prompt_hidden[:, :-1]
        ids = target.prompt[:, target.prompt.shape[1] - states.shape[1] - 1 : -1]
        slots = self.drafter.read(states, real, pictures(ids, target.parts.placeholders, target.parts.tokens_per_image))
        self._reach(slots.attend.dtype)
        self.absorb(slots.attend, self.next_position[:, None] + slots.position, slots.count.tolist())
        self.next_position = self.next_position + slots.next_position

    def absorb(self, context: Tensor, position: Tensor, counts: list[int]) -> None:
        """Adds context states [B, n, H] at positions int64 [B, n], the first `counts[b]` of row b."""
        if not context.shape[1]:  # a prompt of one token
            layer = self.drafter.layer.config
            empty = context.new_empty(len(counts), layer.groups, 0, layer.dim)
            return self.cache.reserve(empty, empty)
        rotary = self.rotary[position]
        for index, layer in enumerate(self.drafter.layers):
            self.cache.write(index, *layer.context(context, rotary))
        self.cache.advance(counts)

    def catch_up(self) -> None:
        """Adds the context of what was accepted since the last draft, then makes the block behind it."""
        self.take_in()
        self.draw_block()

    def take_in(self) -> None:
        """Adds the context of what was accepted since the last draft."""
        states, _, self.counts = self.pending_features.take()
        context = self.drafter.context(states)
        self._reach(context.dtype)
        ahead = torch.arange(states.shape[1], device=states.device)
        self.absorb(context, self.next_position[:, None] + ahead, self.counts)
        self.next_position = self.next_position + torch.tensor(self.counts, device=states.device)

    def draw_block(self) -> None:
        """One pass over the block behind the pending token."""
        drafter, target = self.drafter, self.target
        embeds = table_rows(target.parts.embed, drafter.block(target.pending))
        ahead = torch.arange(embeds.shape[1], device=embeds.device)
        self.passes += 1
        rotary = self.rotary[self.next_position[:, None] + ahead]
        rows = drafter(embeds, rotary, self.cache, biases(drafter.config, self.cache, embeds.shape[1], embeds.dtype))
        self.rows = drafter.drafting(rows)[:, : self.most_levels()]
        self.unary = drafter.unary(self.rows, target.parts.head, self.after) + self.ruling
        self.root = drafter.after(self.rows[:, :1], target.pending[:, None], None)[:, 0]

    def feature(self, out: Tensor, depth: int) -> Tensor:
        return self.drafter.seen(out)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """float32 [B, n, V], visual placeholders ruled out.   depth: of the children, from 1."""
        return self.drafter.logits(out, depth, self.unary[:, depth - 1 : depth])

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """What the children of one level of drafted tokens int64 [B, n] are drawn from; no pass."""
        return self.drafter.after(self.rows[:, depth : depth + 1], token, hidden)

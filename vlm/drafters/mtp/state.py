"""One request of a checkpoint's own MTP layer."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from mmspec.vlm.drafters.after_head import AfterHead
from mmspec.vlm.drafters.feature_state import FeatureState


class MtpState(FeatureState):
    """As a feature drafter's, but slots stand at the target's own positions, on as many axes.

    next_position: int64 [B] or [A, B], of the next slot.
    """

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """See `FeatureState.logits`; with what the target does to its head's logits."""
        said = self.drafter.logits(out, depth, self.target.parts.head)
        return AfterHead.of(self.target.parts)(said) + self.ruling

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompt: all its pairs but the last, whose next token came with the first pass."""
        target, drafter = self.target, self.drafter
        positions = target.prompt_positions.expand(*target.prompt_positions.shape[:-2], target.batch, -1)
        embeds, hidden = target.prompt_embeds[:, 1:], target.prompt_hidden[:, :-1]
        batch, count = hidden.shape[:2]
        self.next_position = positions[..., -1] + 1
        self.cache.capacity = count + target.cache.capacity - target.prompt.shape[1] + 64
        counts, places = [count] * batch, positions[..., 1:]
        if not count:  # a prompt of one token
            empty = embeds.new_empty(batch, 1, 0, 1)
            return self.cache.reserve(empty, empty)
        if target.padding is not None:  # rows are moved to the left, so that the padding takes no slots
            padding = target.padding[:, :-1]
            order = padding.long().argsort(dim=1, stable=True)
            counts = (~padding).sum(1).tolist()
            embeds, hidden = (x.gather(1, order[..., None].expand_as(x)) for x in (embeds, hidden))
            places = places.gather(-1, order.expand_as(places))
        self.passes += 1
        drafter(drafter.fuse(embeds, hidden), places, self.cache, None)
        self.cache.advance(counts)

    @torch.no_grad()
    def follow(self, target: object) -> Self:
        """See `FeatureState.follow`."""
        if self.next_position is None:
            self.prefill()
        if self.pending_features:
            self.catch_up()
        self.rewind(target.turn.forget)
        self.serve(target)
        _, embeds, hidden = self.unread()
        pairs = hidden.shape[1] - 1
        places = target.prompt_positions[..., -pairs:].expand(*target.prompt_positions.shape[:-2], 1, -1)
        read = self.drafter.fuse(embeds[:, 1:], hidden[:, :-1])
        causal = torch.ones(1, pairs, pairs, dtype=torch.bool, device=target.device).tril()
        self.passes += 1
        self.drafter(read, places, self.cache, self.bias(causal, 0, read.dtype))
        self.cache.advance(pairs)
        self.next_position = places[..., -1] + 1
        return self

    def read(self, value: Tensor, hidden: Tensor, ahead: Tensor | int, ancestor: Tensor | None, back: int) -> Tensor:
        read = self.drafter.fuse(self.target.parts.embed(value), hidden)
        position = self.next_position[..., None] + ahead
        if position.shape[-1] != value.shape[1]:  # nodes of one level share a position
            position = position.expand(*position.shape[:-1], value.shape[1])
        self.passes += 1
        return self.drafter(read, position, self.cache, self.bias(ancestor, back, read.dtype))

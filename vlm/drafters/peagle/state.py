"""One request of P-EAGLE: a cache of accepted pairs in all layers, and the masks behind them."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.core.draft import gather_nodes
from mmspec.vlm.drafters.feature_state import FeatureState
from mmspec.vlm.drafters.prompt_view import PromptView
from mmspec.vlm.drafters.slots import Slots


class ParallelState(FeatureState):
    """Reads accepted pairs and drafts behind them in one pass; masks lie behind the pairs and are not counted.

    rows: [B, D, H], the outputs that each depth's token is drawn from.   scored: float32 [B, D, V], their log-weights.
    """

    independent = True

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.cache = SlotCache(drafter.config.num_hidden_layers, 0)
        self.rows: Tensor | None = None
        self.scored: Tensor | None = None

    @property
    def slots_ahead(self) -> int:
        return self.drafter.config.depths

    def view(self) -> PromptView:
        """What is read, with the drafter's own embeddings of text."""
        view, ids = super().view(), self.unread()[0][:, 1:]
        own = self.drafter.embed_tokens(ids.clamp(max=self.drafter.config.vocab_size - 1))
        view.embeds = torch.where(view.picture[..., None] > 0, view.embeds, own)
        return view

    def fill(self, slots: Slots) -> None:
        """Reads slots through all layers: later ones' keys come from earlier ones' outputs."""
        attend, count = slots.attend, slots.attend.shape[1]
        if not count:
            return super().fill(slots)
        seen = torch.ones(1, count, count, dtype=torch.bool, device=attend.device).tril()
        bias = self.bias(seen, 0, attend.dtype) if self.cache.width else None
        rotary = self.rotary[self.next_position[:, None] + slots.position]
        self.passes += 1
        self.drafter(attend, slots.carry, rotary, self.cache, bias)
        self.cache.advance(slots.count.tolist())

    def catch_up(self) -> None:
        """One pass over the pairs noted since the last draft and the masks behind each row's own."""
        drafter, target = self.drafter, self.target
        hidden, value, self.counts = self.pending_features.take()
        batch, pairs = value.shape
        masks = self.most_levels() - 1
        blank, states = drafter.masks(batch, masks)
        embeds = torch.cat([drafter.embed_tokens(value), blank], 1)
        attend, carry = drafter.fuse(embeds, torch.cat([hidden, states], 1))
        self._reach(attend.dtype)
        count = torch.tensor(self.counts, device=value.device)
        node = torch.arange(pairs + masks, device=value.device)
        ahead = torch.where(
            node < pairs, node, count[:, None] + node - pairs
        )  # [B, n], masks follow each row's last pair
        real = (node >= pairs) | (node < count[:, None])
        seen = (node <= node[:, None]) & real[:, None] | torch.eye(len(node), dtype=torch.bool, device=node.device)
        bias = self.cache.bias(seen, attend.dtype)
        rotary = self.rotary[self.next_position[:, None] + ahead]
        self.passes += 1
        out = drafter(attend, carry, rotary, self.cache, bias)
        last = (count - 1).clamp(min=0)[:, None]
        self.rows = torch.cat([gather_nodes(out, last), out[:, pairs:]], 1)
        self.scored = drafter.logits(self.rows, 1, target.parts.head) + self.ruling
        self.root = self.rows[:, 0]
        self.next_position = self.next_position + count
        self.cache.advance(self.counts)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """float32 [B, n, V].   depth: of the children, from 1."""
        return self.scored[:, depth - 1 : depth].expand(-1, out.shape[1], -1)

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """The row of the next depth for all nodes of a level; no pass."""
        return self.rows[:, depth : depth + 1].expand(-1, token.shape[1], -1)

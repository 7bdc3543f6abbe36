"""One request of a feature drafter: its cache, its positions, and the drafts it proposes."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.core.draft import Draft, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.tree import chain
from mmspec.core.verdict import Verdict, run_of
from mmspec.vlm.drafters import grow
from mmspec.vlm.drafters.shapes import Chain, DynamicTree


class EagleState:
    """Keeps the slots of committed pairs (h_j, e_{j+1}) in a cache of its own.

    root: float [B, H], the predicted feature behind the last committed pair: what depth 1 is drawn from.
    next_position: int64 [B], position of the next slot.
    """

    def __init__(self, drafter: object, target: object):
        self.drafter, self.target, self.passes = drafter, target, 0
        self.shape = drafter.shape_for(target.greedy)
        self.ruling = torch.zeros(target.parts.vocab_size, device=target.device)
        self.ruling[list(target.parts.placeholders)] = -torch.inf
        self.ruling = target.processors.suppress(self.ruling)
        embeds, hidden = target.prompt_embeds, target.prompt_hidden
        self.cache = SlotCache(1, target.cache.capacity + 64)
        self.rotary = drafter.rotary(self.cache.capacity, target.device, embeds.dtype)
        self.root: Tensor | None = None
        self._prefill(embeds[:, 1:], hidden[:, :-1])

    @torch.no_grad()
    def _prefill(self, embeds: Tensor, hidden: Tensor) -> None:
        batch, count = embeds.shape[:2]
        padding = self.target.padding
        if count == 0:
            self.cache.reserve(*(embeds.new_zeros(batch, self._heads, 0, self._dim) for _ in range(2)))
            self.next_position = torch.zeros(batch, dtype=torch.long, device=embeds.device)
            return
        if padding is None:
            position, bias = torch.arange(count, device=embeds.device).expand(batch, -1), None
        else:
            position = ((~padding[:, :-1]).cumsum(-1) - 1).clamp_(min=0)
            bias = _causal_bias(padding[:, :-1], embeds.dtype)
        self._forward(embeds, hidden, position, bias)
        self.cache.advance(count)
        self.cache.hidden = None if padding is None else padding[:, :-1]
        self.next_position = position[:, -1] + 1 if padding is None else (~padding[:, :-1]).sum(-1)

    @property
    def _heads(self) -> int:
        return self.drafter.config.num_attention_heads

    @property
    def _dim(self) -> int:
        return self.drafter.config.hidden_size // self._heads

    def _forward(self, embeds: Tensor, hidden: Tensor, position: Tensor, bias: Tensor | None) -> Tensor:
        self.passes += 1
        needed = self.cache.width + embeds.shape[1] + 1
        if needed > self.rotary.shape[0]:
            self.rotary = self.drafter.rotary(2 * needed, embeds.device, embeds.dtype)
        return self.drafter.forward(embeds, hidden, self.rotary[position], self.cache, bias)

    @torch.no_grad()
    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Extends the cache by the accepted pairs: hidden states of the path, embeddings of what followed each."""
        counts = [len(path) for path in target.paths]
        width = max(counts)
        following, _ = run_of(draft, verdict)
        hidden = gather_nodes(evidence.hidden, verdict.path[:, :width])
        embeds = target.parts.embed(following[:, :width])
        tree = chain(width - 1, embeds.device)
        position = self.next_position[:, None] + tree.depth
        out = self._forward(embeds, hidden, position, self.cache.bias(tree.ancestor, embeds.dtype))
        last = torch.tensor(counts, device=embeds.device)
        self.root = gather_nodes(out, (last - 1).clamp(min=0)[:, None])[:, 0]
        self.next_position = self.next_position + last
        self.cache.advance(counts)

    @torch.no_grad()
    def propose(self, target: object, keys: Keys) -> Draft:
        """A draft in the request's shape. The draft's own slots are forgotten again: accepted ones come back with the
        target's true hidden states."""
        lengths = list(self.cache.lengths), self.cache.length
        if isinstance(self.shape, DynamicTree):
            draft = grow.dynamic(self, target, self.shape)
        elif isinstance(self.shape, Chain):
            draft = grow.path(self, target, self.shape.length, keys)
        else:
            draft = grow.static(self, target, self.shape, keys)
        self.cache.lengths, self.cache.length = lengths
        return draft

    def logits(self, out: Tensor) -> Tensor:
        """float32 [..., V] of predicted features, visual placeholders ruled out."""
        return self.target.parts.head(out).float() + self.ruling

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Predicted features of one level of drafted nodes, which stay in the cache until the draft is complete.

        token: int64 [B, n]; hidden: [B, n, H], their parents' features; ancestor: bool [R, n, back + n] over the drafted
        nodes in the cache, None on a chain; back: how many are there already; depth: of these nodes, 1 for the first level.
        """
        embeds = self.target.parts.embed(token)
        # all nodes of a level share a position; rows may share it too
        position = (self.next_position + (depth - 1))[:, None]
        bias = None
        if ancestor is not None or not self.cache.uniform or self.cache.hidden is not None:
            seen = token.new_ones(1, 1, back + 1, dtype=torch.bool) if ancestor is None else ancestor
            bias = self.cache.bias(seen, embeds.dtype, back)
        out = self._forward(embeds, hidden, position, bias)
        self.cache.advance(token.shape[1])
        return out


def _causal_bias(padding: Tensor, dtype: torch.dtype) -> Tensor:
    count = padding.shape[1]
    index = torch.arange(count, device=padding.device)
    seen = (index <= index[:, None]) & ~padding[:, None]
    return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)[:, None]

"""One request of a feature drafter: its cache, its positions, and the drafts it proposes."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.cache import SlotCache
from mmspec.core.draft import Draft, gather_nodes, root_only
from mmspec.core.drafting import grow
from mmspec.core.drafting.pending_features import PendingFeatures
from mmspec.core.drafting.placement import alongside
from mmspec.core.drafting.shapes import DynamicTree, StaticTree
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.tree import chain
from mmspec.core.verdict import Verdict
from mmspec.vlm.drafters.limits import useful
from mmspec.vlm.drafters.prompt_view import PromptView


class FeatureState:
    """Keeps the slots of committed pairs (h_j, e_{j+1}) in a cache of its own.

    Three counters, none derived from another: committed ids are the target's, `cache.lengths` counts slots (fewer than ids
    where pictures are compressed), `next_position` int64 [B] is the position of the next slot.
    root: float [B, H], the predicted feature behind the last committed pair: what depth 1 is drawn from.
    pending_features: pairs the target has accepted since.
    longest: at most so many levels in the next draft; None for as many as the shape has.
    pictures: bool [B, R], which of the first cache slots come from pictures; None before the prompt is read.
    latest: of the last pass over committed pairs, what it attended from, the positions, and how many count in each row.
    """

    def __init__(self, drafter: object, target: object):
        self.drafter, self.target, self.passes = alongside(drafter, target.parts.embed.weight), target, 0
        self.shape = drafter.shape_for(target.greedy)
        self.ruling = torch.zeros(target.parts.vocab_size, device=target.device)
        self.ruling[list(target.parts.placeholders)] = -torch.inf
        self.ruling = target.processors.suppress(self.ruling)
        self.cache = SlotCache(1, 0)
        self.rotary = self.root = self.next_position = self.context = None
        self.pending_features = PendingFeatures()
        self.longest: int | None = None
        self.pictures: Tensor | None = None
        self.latest: tuple[Tensor, Tensor, list[int]] | None = None

    @property
    def deepest(self) -> int | None:
        """Levels `longest` may ask for; None where the shape has no use for it."""
        return None if isinstance(self.shape, StaticTree) else self.shape.longest

    @torch.no_grad()
    def prefill(self) -> None:
        """Reads the prompt: all its pairs but the last, whose next token came with the first pass."""
        target, drafter = self.target, self.drafter
        view = PromptView.of(
            target.prompt, target.prompt_embeds, target.prompt_hidden, target.parts.placeholders,
            target.parts.tokens_per_image, target.padding,
        )  # fmt: skip
        slots = drafter.read(view)
        batch, count = slots.attend.shape[:2]
        # room for what will be generated; the pool doubles when that is not enough
        self.cache.capacity = count + target.cache.capacity - target.prompt.shape[1] + 64
        self.next_position, self.context = slots.next_position, slots.last_context
        self.pictures = slots.of_pictures(view.picture)
        if self.context is not None:
            self.context = self.context[:, None]
        if count == 0:
            config = drafter.layer.config
            self.cache.reserve(*(slots.attend.new_zeros(batch, config.groups, 0, config.dim) for _ in range(2)))
            return
        self._reach(slots.attend.dtype)
        self.passes += 1
        # a single layer has no use for what it would put out here: later slots only attend the keys and values
        drafter.layer.remember(slots.attend, self.rotary[slots.position], self.cache)
        self.cache.advance(count if bool((slots.count == count).all()) else slots.count.tolist())

    def _reach(self, dtype: torch.dtype) -> None:
        """Makes rotary rows for every position the next draft can have."""
        target = self.target
        needed = target.prompt.shape[1] + max(map(len, target.tokens)) + self.shape.longest + 1
        if self.rotary is None or self.rotary.shape[0] < needed:
            self.rotary = self.drafter.layer.rotary(2 * needed + 512, target.device, dtype)

    def pass_over(self, attend: Tensor, carry: Tensor, position: Tensor, bias: Tensor | None) -> Tensor:
        """One pass of the drafter's layer over new slots at `position` int64 [B or 1, n]."""
        self.passes += 1
        return self.drafter.forward(attend, carry, self.rotary[position], self.cache, bias)

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Notes the accepted pairs: hidden states of the path, and what followed each. They are read before a draft."""
        self.pending_features.note(target.paths, draft, evidence, verdict)

    def _catch_up(self) -> None:
        """Extends the cache by the pairs noted since the last draft, in one pass."""
        hidden, ids, counts = self.pending_features.take()
        attend, carry = self.drafter.fuse(self.target.parts.embed(ids), hidden, self.context)
        self._reach(attend.dtype)
        tree = chain(ids.shape[1] - 1, attend.device)
        plain = ids.shape[1] == 1 and self.cache.uniform
        bias = None if plain else self.cache.bias(tree.ancestor, attend.dtype)
        position = self.next_position[:, None] + tree.depth
        out = self.pass_over(attend, carry, position, bias)
        self.latest = attend, position, counts
        if len(counts) == 1:
            self.root = out[:, counts[0] - 1]
            self.next_position = self.next_position + counts[0]
            self.cache.advance(counts[0])
            return
        last = torch.tensor(counts, device=attend.device)
        self.root = gather_nodes(out, (last - 1).clamp(min=0)[:, None])[:, 0]
        self.next_position = self.next_position + last
        self.cache.advance(counts)

    def ready(self) -> None:
        """Reads all that is known so far; `root` is up to date afterwards."""
        if self.next_position is None:
            self.prefill()
        if self.pending_features:
            self._catch_up()

    @torch.no_grad()
    def propose(self, target: object, keys: Keys) -> Draft:
        """A draft in the request's shape."""
        longest = self._levels()
        rooms = useful(target, longest)
        if not any(rooms):
            return root_only(target.pending)
        self.ready()
        shape = self.shape.cut(longest) if isinstance(self.shape, DynamicTree) else self.shape
        return grow.draft(self, target, shape, keys, rooms)

    def _levels(self) -> int:
        """How many levels a draft may have."""
        return self.shape.longest if self.longest is None else min(self.shape.longest, self.longest)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """float32 [..., V] of predicted features, visual placeholders ruled out.   depth: of the children, from 1."""
        return self.drafter.logits(out, depth, self.target.parts.head) + self.ruling

    def law(self, out: Tensor, depth: int) -> Tensor:
        """Log-weights a sampled request draws from: `logits` as the target warps its own."""
        return self.target.processors.warp(self.logits(out, depth))

    def feature(self, out: Tensor, depth: int) -> Tensor:
        """The predicted features [..., H] that the children at `depth` (from 1) are drawn from."""
        return out

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """Predicted features of one level of drafted nodes, which stay in the cache until the draft is complete.

        token: int64 [B, n]; hidden: [B, n, H], their parents' features; ancestor: bool [R, n, back + n] over the drafted
        nodes in the cache, None on a chain; back: how many are there already; depth: of these nodes, 1 for the first level.
        """
        attend, carry = self.drafter.fuse(self.target.parts.embed(token), hidden, self.context)
        # all nodes of a level share a position; rows may share it too
        position = (self.next_position + (depth - 1))[:, None]
        bias = None
        if ancestor is not None or not self.cache.uniform:
            seen = token.new_ones(1, 1, back + 1, dtype=torch.bool) if ancestor is None else ancestor
            bias = self.cache.bias(seen, attend.dtype, back)
        out = self.pass_over(attend, carry, position, bias)
        self.cache.advance(token.shape[1])
        return out

"""One request of a drafter that predicts a block of k features per pass."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.vlm.drafters.feature_state import FeatureState


class BlockState(FeatureState):
    """Runs the drafter only where a block ends: within a block, deeper levels read the remaining offsets of its source.

    What is carried from node to child is the whole block of the source, [B, n, k * H]; depth d reads offset (d - 1) % k of
    it. Where nodes of the last level of a block are expanded, all nodes expanded in the block are read in one pass, each as
    the pair of its own predicted feature and its token, and the last level's outputs are the next blocks. No node of a
    block has seen another one's token: tokens of one block are drawn independently given the prefix, and the law on record
    is the law of each depth. A draft of k * m levels costs m passes, the one over the accepted pairs included.

    Drafted slots are always forgotten after a draft and accepted ones read again with the target's own states, so no
    committed slot was ever computed beside a rejected token (what Falcon's code has to drop and recompute).
    """

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.expanded: list[tuple[Tensor, Tensor]] = []  # per level of the block under way: tokens and own features
        self.scored: tuple[Tensor, Tensor] | None = None  # the block a chain is in, and its offsets' logits

    def catch_up(self) -> None:
        super().catch_up()
        self.root = self.drafter.layer.expansion(self.root, self.drafter.block)

    def feature(self, out: Tensor, depth: int) -> Tensor:
        return self.drafter.offset(out, depth)

    def logits(self, out: Tensor, depth: int) -> Tensor:
        """As in FeatureState; a chain's block goes through the head once for all of its offsets."""
        if out.shape[1] != 1:
            return super().logits(out, depth)
        block = self.drafter.block
        if self.scored is None or self.scored[0] is not out:
            features = out.unflatten(-1, (block, -1))
            self.scored = out, self.drafter.logits(features, depth, self.target.parts.head) + self.ruling
        return self.scored[1][:, :, (depth - 1) % block]

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """The blocks [B, n, k * H] that the children of one level of drafted nodes are drawn from.

        token: int64 [B, n]; hidden: [B, n, k * H], the blocks these nodes were drawn from; the rest as in FeatureState.
        """
        if depth == 1:
            self.expanded = []
        self.expanded.append((token, self.feature(hidden, depth)))
        if depth % self.drafter.block:
            return hidden
        return self._next_blocks(ancestor, back + token.shape[1], depth)

    def _next_blocks(self, ancestor: Tensor | None, drafted: int, depth: int) -> Tensor:
        """One pass over the block's nodes.   drafted: nodes of the draft by now, this block's included."""
        drafter, levels = self.drafter, self.expanded
        self.expanded = []
        sizes = tuple(token.shape[1] for token, _ in levels)
        token, feature = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
        attend, carry = drafter.fuse(self.target.parts.embed(token), feature, self.context)
        position = self.next_position[:, None] + _steps(sizes, depth, str(token.device))
        bias = self.bias(ancestor, drafted - sum(sizes), attend.dtype, sum(sizes))
        self.passes += 1
        # only the last level's outputs are of use: the others are there to be attended
        out = drafter.layer(attend, carry, self.rotary[position], self.cache, bias, sizes[-1])
        self.cache.advance(sum(sizes))
        return drafter.layer.expansion(out, drafter.block)


@lru_cache(maxsize=64)
def _steps(sizes: tuple[int, ...], depth: int, device: str) -> Tensor:
    """How far behind the root's slot the nodes of a block lie; `depth` is that of its last level."""
    first = depth - len(sizes)
    return torch.tensor([first + level for level, count in enumerate(sizes) for _ in range(count)], device=device)

"""One request of Hydra: embeddings of the drafted tokens, and the prefix layer's cache where there is one."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.vlm.drafters.feature_state import FeatureState
from mmspec.vlm.drafters.head_state import HeadState


class HydraState(HeadState):
    """passes: evaluations of a head, one a level.   known: float [B, 1 + drafted, H], embeddings of the root and of the
    drafted nodes expanded so far."""

    known: Tensor

    @torch.no_grad()
    def ready(self) -> None:
        if self.root is None:
            self.passes += 1
            self.known = self.target.parts.embed(self.target.pending[:, None])
            self.root = self.drafter.feature(0, self.source, self.known)[:, 0]

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        self.passes += 1
        self.known = torch.cat([self.known[:, : back + 1], self.target.parts.embed(token)], 1)
        batch, count = token.shape
        if ancestor is None:
            return self.drafter.feature(depth, self.source, self.known.flatten(1)[:, None])
        # `depth` columns of every row are True; their order is that of the levels
        place = ancestor.byte().argsort(dim=-1, descending=True, stable=True)[..., :depth] + 1
        node = torch.cat([torch.zeros_like(place[..., :1]), place], -1).expand(batch, -1, -1)
        row = torch.arange(batch, device=token.device)[:, None, None]
        path = self.known[row, node].flatten(2)
        return self.drafter.feature(depth, self.source.expand(-1, count, -1), path)


class PrefixState(HydraState):
    """Starts from the prefix layer's state of the last committed pair, which takes a cache over the prompt. passes: those of
    the prefix layer, and one a level."""

    prefill = FeatureState.prefill
    follow = FeatureState.follow

    def observe(self, target: object, draft: object, evidence: object, verdict: object) -> None:
        FeatureState.observe(self, target, draft, evidence, verdict)

    @torch.no_grad()
    def ready(self) -> None:
        if self.next_position is None or self.pending_features:
            FeatureState.ready(self)
            self.source, self.root = self.root[:, None], None
        HydraState.ready(self)

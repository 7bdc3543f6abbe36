"""One request of a drafter made of heads: the state it drafts from, and nothing of the prompt."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from mmspec.core.draft import Draft, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.verdict import Verdict
from mmspec.vlm.drafters.feature_state import FeatureState


class HeadState(FeatureState):
    """Keeps the target's state a draft starts from, behind the token before the root; no cache, so a prompt costs nothing.

    source: float [B, 1, H], that state.   root: float [B, H], what the first head makes of it; None until `ready`.
    passes: evaluations of the heads: one a draft, since none of them looks at drafted tokens.
    """

    def __init__(self, drafter: object, target: object):
        super().__init__(drafter, target)
        self.source: Tensor | None = None

    def prefill(self) -> None:
        """Nothing to read: the state behind the prompt comes with the first pass."""

    def follow(self, target: object) -> Self:
        self.serve(target)
        return self

    def observe(self, target: object, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Notes the target's state at the last accepted node."""
        self.source, self.root = gather_nodes(evidence.hidden, verdict.node[:, None]), None

    @torch.no_grad()
    def ready(self) -> None:
        """Brings `root` up to date."""
        if self.root is None:
            self.passes += 1
            self.root = self.drafter.feature(0, self.source)[:, 0]

    def expand(self, token: Tensor, hidden: Tensor, ancestor: Tensor | None, back: int, depth: int) -> Tensor:
        """What the next head makes, [B, n, H], the same for all nodes of the level; see `PairState.expand`."""
        return self.drafter.feature(depth, self.source).expand(-1, token.shape[1], -1)

"""K-SEQ: i.i.d. siblings, each tested by the same discounted ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, expand_tree
from mmspec.core.evidence import Evidence
from mmspec.core.rules.base import Rule, Weights
from mmspec.core.rules.fan import fan_of
from mmspec.core.rules.laws import keep_live, law_row, laws_of
from mmspec.kernels.kseq import kseq_discount
from mmspec.kernels.law import TINY
from mmspec.kernels.race import Residual


class KSeq(Rule):
    """Accepts each of a node's n children with probability min(1, p / (rho q)), first success wins. Exact for children drawn
    independently from q; n is the number of children really drawn and may differ from node to node.

    "SpecTr: Fast Speculative Decoding via Optimal Transport". rho is the smallest that leaves a residual: with
    beta = sum min(p / rho, q), 1 - (1 - beta)^n <= rho beta; what follows a node whose children all failed has the law
    p - min(p / rho, q) (1 - (1 - beta)^n) / beta. Flat laws gain most over recursive rejection.
    """

    name = "kseq"
    exact = True
    proven_for = frozenset({("categorical", "with_replacement")})

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)
        parent, node = expand_tree(draft.tree.parent, draft.batch), fan_of(draft.tree).node
        drawn = torch.ones_like(laws.token) if laws.live is None else laws.live.long()
        drawn = drawn * (torch.arange(draft.tree.nodes, device=node.device) > 0)
        count = torch.zeros_like(laws.token).scatter_add_(1, parent, drawn).index_select(1, node)
        found = kseq_discount(laws.p.index_select(1, node), laws.q.index_select(1, laws.row[node]), count)
        state = torch.ones(2, *count.shape[:1], draft.tree.nodes, dtype=laws.p.dtype, device=node.device)
        state[1] = 0
        rho, scale = state.index_copy_(2, node, torch.stack(found))
        threshold = (laws.child_p / (rho.gather(1, parent) * laws.child_q).clamp_min(TINY)).clamp_max(1)
        return Weights(keep_live(threshold, laws.live), "descend", laws.p, laws.q, alpha=scale, extra=rho)

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual:
        return Residual("kseq", weights.p, weights.q, law_row(draft), weights.alpha, weights.extra)

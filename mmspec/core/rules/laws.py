"""What several rules look up: which nodes count, and both laws at the drafted tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.draft import Draft, expand_tree
from mmspec.core.evidence import Evidence
from mmspec.core.rules.base import Rule, Weights
from mmspec.kernels.law import LogLaw, law_rows, mass_at
from mmspec.kernels.race import Residual
from mmspec.kernels.slots import take_node


def live_nodes(evidence: Evidence, draft: Draft) -> Tensor | None:
    """bool [B, N], True where a node and all above it were drawn and judged by finite evidence; None for everywhere.

    What follows a bad node counts as never drawn, so no rule accepts it or anything below it.
    """
    if draft.valid is None and evidence.bad is None:
        return None
    tree, batch = draft.tree, draft.batch
    live = torch.ones_like(evidence.bad) if draft.valid is None else draft.valid
    if evidence.bad is not None:
        live = live & ~evidence.bad.gather(1, expand_tree(tree.parent, batch))
    root = torch.arange(tree.nodes, device=live.device) == 0
    return (tree.ancestor <= (live | root)[:, None, :]).all(-1)


@dataclass(slots=True)
class Laws:
    """p: [B, N, V], the target's law after each node.   q: [B, M, V], the laws children were drawn from.

    child_p, child_q: float [B, N], both at each node's own token, under the laws of its parent.
    token: int64 [B, N], in range at undrafted nodes too.   row: int64 [N], row of q for a node's children, 0 for leaves.
    live: bool [B, N] or None, see `live_nodes`.
    """

    p: Tensor | LogLaw
    q: Tensor | LogLaw
    child_p: Tensor
    child_q: Tensor
    token: Tensor
    row: Tensor
    live: Tensor | None


def laws_of(evidence: Evidence, draft: Draft) -> Laws:
    """Both laws of a draft whose q record is categorical."""
    p = law_rows(evidence.scores)
    q = p if draft.law.scores is None else law_rows(draft.law.scores)  # a root alone has no law and needs none
    if q.shape[-1] != p.shape[-1]:
        raise ValueError(f"q record: expected scores over the target's {p.shape[-1]} values, got {q.shape[-1]}; "
                         "map the drafter's vocabulary onto the target's")  # fmt: skip
    parent, row = draft.tree.parent, law_row(draft)
    token = draft.value.clamp(0, p.shape[-1] - 1)
    return Laws(
        p, q, mass_at(p, parent, token), mass_at(q, row[parent], token), token, row, live_nodes(evidence, draft)
    )


def law_row(draft: Draft) -> Tensor:
    """int64 [N], the row of the q record for each node's children; 0 where there is none, and then it is not read."""
    if draft.law.row is None:
        return torch.zeros(draft.tree.nodes, dtype=torch.long, device=draft.value.device)
    return draft.law.row.clamp_min(0)


def keep_live(threshold: Tensor, live: Tensor | None) -> Tensor:
    """Thresholds with 0 at nodes that do not count."""
    return threshold if live is None else torch.where(live, threshold, 0.0)


def at(tensor: Tensor | LogLaw, node: Tensor) -> Tensor:
    """tensor [B, N, ...] at one node a row, int64 [B] -> [B, ...]; of a law its probabilities."""
    return tensor.at(node).dense()[:, 0] if isinstance(tensor, LogLaw) else take_node(tensor, node)


class TwoScalar(Rule):
    """Base of rules whose residual is [alpha p - beta q]+ at every node."""

    def form(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Residual:
        return Residual("scaled", weights.p, weights.q, law_row(draft), weights.alpha, weights.beta)


def goes_on(tensor: Tensor, live: Tensor | None) -> Tensor:
    """1 where the next node of a chain was drawn, 0 at its end, shaped like `tensor` [B, N]."""
    if live is None:
        more = torch.ones_like(tensor)
        more[:, -1] = 0
        return more
    return pad(live[:, 1:], (0, 1)).to(tensor.dtype)

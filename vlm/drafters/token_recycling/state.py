"""One request of Token Recycling: its tables, and trees cut to what they know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.draft import Draft, Law, root_only
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.tree import Tree, static_tree
from mmspec.core.verdict import Verdict
from mmspec.vlm.drafters.token_recycling.table import RecyclingTable
from mmspec.vlm.target import TextTarget

if TYPE_CHECKING:
    from mmspec.vlm.drafters.token_recycling.drafter import TokenRecycling


class RecyclingState:
    """One request's tables, and its trees cut to what the tables know.

    may_miss: rounds it is not shown do no harm, they only leave the tables older.
    """

    passes, may_miss = 0, True

    def __init__(self, drafter: TokenRecycling, target: TextTarget):
        self.template, self.width = drafter.template, drafter.width
        rows, table = (target.batch, RecyclingTable(drafter.width)) if drafter.table is None else (1, drafter.table)
        self.table = table.reserve(rows, target.parts.vocab_size, target.device)
        self.tree = static_tree(self.template, target.device)
        depths = [(self.tree.depth[0] == d).nonzero()[:, 0] for d in range(1, self.tree.max_depth + 1)]
        self.levels = [(node, self.tree.parent[0, node], self.tree.sibling_rank[0, node]) for node in depths]
        self.barred = torch.tensor(target.parts.placeholders, dtype=torch.long, device=target.device)

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        value, valid = self._fill(target.pending, target.rooms(self.tree.max_depth))
        # nodes keep their numbers when the tail is cut, so a row's randomness does not depend on its neighbours
        last = int((valid.any(0) * torch.arange(self.tree.nodes, device=valid.device)).max())
        if last == 0:
            return root_only(target.pending)
        return Draft(value[:, : last + 1], self._cut(last + 1), Law("deterministic"), valid[:, : last + 1])

    def _fill(self, pending: Tensor, rooms: list[int]) -> tuple[Tensor, Tensor]:
        batch, nodes = pending.shape[0], self.tree.nodes
        value = pending.new_zeros(batch, nodes)
        value[:, 0] = pending
        valid = self.tree.depth <= torch.tensor(rooms, device=pending.device)[:, None]
        for node, parent, rank in self.levels:
            found = self.table.look(value[:, parent], rank)
            known = valid[:, node] & valid[:, parent] & (found >= 0)
            valid[:, node] = known
            value[:, node] = torch.where(known, found, 0)
        return value, valid

    def _cut(self, nodes: int) -> Tree:
        return static_tree(self.template[:nodes], self.tree.parent.device)

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Every scored node refreshes its token's row, rejected ones too; accepted nodes win over rejected ones."""
        usable = torch.tensor(target.live, device=target.device)[:, None].expand_as(draft.value)
        for mask in (draft.valid, None if evidence.bad is None else ~evidence.bad):
            usable = usable if mask is None else usable & mask
        usable = usable & ~torch.isin(draft.value, self.barred)
        order = torch.arange(draft.value.numel(), device=target.device).view_as(draft.value)
        accepted = torch.zeros_like(order).scatter_(1, verdict.path, 1)
        self.table.store(draft.value, self._best(evidence.scores), usable, order + accepted * order.numel())

    def _best(self, scores: Tensor) -> Tensor:
        count = min(self.width, scores.shape[-1])
        best, token = scores.topk(count, -1)
        token = token.masked_fill(best.isneginf() | torch.isin(token, self.barred), -1)
        return torch.nn.functional.pad(token, (0, self.width - count), value=-1)

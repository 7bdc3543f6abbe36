"""Token Recycling: a static draft tree from a table of the target's own discarded candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.drafting.shapes import likeliest_tree
from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, learnable_nodes, root_only, without_tail
from mmspec.core.round.keys import Keys
from mmspec.core.round.tree import static_tree
from mmspec.io.validation import check_fields, whole
from mmspec.methods import method
from mmspec.vlm.target import TextTarget

# the rate at which the target's next token is a row's entry of rank 0, 1, ...: only the ratios shape the tree
HIT_RATES = (0.45, 0.13, 0.07, 0.05, 0.035, 0.025, 0.02, 0.015)


def small_template() -> tuple[int, ...]:
    """Return a tree of 24 nodes down to depth 5, for CPUs, where every node makes a pass slower; the paper has 80 nodes."""
    return likeliest_tree(24, 5, HIT_RATES)


@method(
    "recycling",
    domain="vlm",
    kind="drafter",
    title="Token Recycling",
    exact=True,
    order=21,
    drafts=("dynamic tree",),
    about="a tree from the target's earlier candidates",
    paper="Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling",
)
@dataclass(frozen=True, slots=True)
class TokenRecycling:
    """Tree drafts from a table of successors, without a model. Deterministic, so exact.

    Paper: "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token Recycling".

    Args:
        width: The successors that are stored for a token.
        template: The parents of the draft tree, root first; a node's sibling rank selects the successor.
        table: None gives every row of a request an empty table; all requests of this drafter share a RecyclingTable.

    Raises:
        ValueError: The template is wider than the table.
    """

    width: int = 8
    template: tuple[int, ...] = field(default_factory=small_template)
    table: RecyclingTable | None = None

    name = "token_recycling"
    from_ids = True

    def __post_init__(self) -> None:
        check_fields(self)
        widest = static_tree(self.template).max_rank + 1 if len(self.template) > 1 else 0
        if not 1 <= widest <= self.width:
            raise ValueError(f"template: expected 1 to width={self.width} children a node, got up to {widest}")
        if not isinstance(self.table, RecyclingTable | None):
            raise ValueError(f"table: expected a RecyclingTable, got {self.table!r:.60}; leave it out for an empty one")
        if self.table is not None and self.table.width != self.width:
            raise ValueError(f"table: expected width {self.width}, got {self.table.width}")

    def open(self, target: TextTarget) -> RecyclingState:
        return RecyclingState(self, target)


class RecyclingState:
    """Rounds may be skipped: they only leave the tables older."""

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
        value, valid = self.fill(target.pending, target.rooms(self.tree.max_depth))
        draft = without_tail(Draft(value, self.tree, Law("deterministic"), valid), self.template)
        return draft if draft.tree.nodes > 1 else root_only(target.pending)

    def fill(self, pending: Tensor, rooms: list[int]) -> tuple[Tensor, Tensor]:
        """Return the template's tokens [B, N] below the roots int64 [B], and which are known, bool [B, N]. Row b has
        nodes down to the level `rooms[b]`."""
        batch, nodes = pending.shape[0], self.tree.nodes
        value = pending.new_zeros(batch, nodes)
        value[:, 0] = pending
        valid = self.tree.depth <= torch.tensor(rooms, device=pending.device)[:, None]
        for node, parent, rank in self.levels:
            successor = self.table.look(value[:, parent], rank)
            known = valid[:, node] & valid[:, parent] & (successor >= 0)
            valid[:, node] = known
            value[:, node] = torch.where(known, successor, 0)
        return value, valid

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """Store the candidates of every scored node, rejected nodes too; accepted nodes win over rejected nodes."""
        usable = learnable_nodes(draft, evidence, target.live) & ~torch.isin(draft.value, self.barred)
        order = torch.arange(draft.value.numel(), device=target.device).view_as(draft.value)
        accepted = torch.zeros_like(order).scatter_(1, verdict.path, 1)
        self.table.store(draft.value, self._best(evidence.scores), usable, order + accepted * order.numel())

    def retract(self, counts: list[int]) -> None:
        """Do nothing: candidates after rejected tokens stay in the tables."""

    def _best(self, scores: Tensor) -> Tensor:
        count = min(self.width, scores.shape[-1])
        best, token = scores.topk(count, -1)
        token = token.masked_fill(best.isneginf() | torch.isin(token, self.barred), -1)
        return torch.nn.functional.pad(token, (0, self.width - count), value=-1)


class RecyclingTable:
    """A table of successors. Requests that use the same table share their candidates.

    Args:
        width: The successors per token.

    Attributes:
        rows: int32 [R, V + 1, width] after first use, -1 where nothing is known; row V collects discarded writes.
    """

    def __init__(self, width: int = 8):
        self.width = whole("width", width, 1)
        self.rows: Tensor | None = None

    def reserve(self, rows: int, vocab_size: int, device: torch.device) -> RecyclingTable:
        """Create `rows` tables on first use; all rows of a batch share a single table."""
        if self.rows is None:
            self.rows = torch.full((rows, vocab_size + 1, self.width), -1, dtype=torch.int32, device=device)
        have = (self.rows.shape[1] - 1, self.rows.device)
        if have != (vocab_size, torch.device(device)):
            raise ValueError(
                f"table: expected vocabulary {vocab_size} on {device}, got {have[0]} on {have[1]}; "
                "use one table per model"
            )
        return self

    def look(self, token: Tensor, rank: Tensor) -> Tensor:
        """Return the successors of tokens int64 [B, n] at ranks int64 [n], int64 [B, n]; -1 for unknown successors."""
        return self.rows[self._row(token), token, rank].long()

    def store(self, token: Tensor, successors: Tensor, usable: Tensor, priority: Tensor) -> None:
        """Overwrite the rows of tokens int64 [B, n] with successors int [B, n, width] where `usable`, bool [B, n]. Of
        equal tokens, the token of the highest `priority`, int64 [B, n], all different, is stored."""
        if self.rows.shape[0] == 1:
            token, usable, priority = (x.reshape(1, -1) for x in (token, usable, priority))
            successors = successors.reshape(1, -1, self.width)
        rival = (token[:, :, None] == token[:, None, :]) & usable[:, None, :]
        beaten = (rival & (priority[:, None, :] > priority[:, :, None])).any(-1)
        slot = torch.where(usable & ~beaten, token, self.rows.shape[1] - 1)
        self.rows[self._row(slot), slot] = successors.int()

    def _row(self, token: Tensor) -> Tensor:
        return torch.arange(self.rows.shape[0], device=token.device)[:, None]

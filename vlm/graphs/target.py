"""The target's side of a captured round: what `TextTarget` keeps on the host lies on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.batch_target import BatchTarget, lines_of
from mmspec.core.cache import SlotCache
from mmspec.core.draft import Draft, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.graphs.static import Static
from mmspec.core.verdict import Verdict, run_of
from mmspec.vlm.target import TextTarget

_NO_LIMIT = 2**40  # tokens that a row without a limit may still generate
_SHARED = ("parts", "greedy", "pad", "processors", "levels", "table", "lasting", "rope", "stopping", "strict", "mixers")


class SeatedTarget(TextTarget):
    """The rows of a request at fixed addresses. It scores as `TextTarget` does, takes verdicts without asking the device
    anything, and leaves in `lines` what the host has to know (see `lines_of`).

    alive: bool [R], rows that go on.   left: int64 [R], tokens each may still generate.   ends: int64 [E], ids that stop one.
    paths: int64 [R], how many nodes each row's last path has, 0 for a row that had stopped.
    bound: slots that a row may have committed before a round; the cache has room for one pass more, over `nodes` nodes.
    width: nodes of a path.
    """

    asks = False

    def __init__(self, target: TextTarget, rows: int, bound: int, width: int, nodes: int):
        BatchTarget.__init__(self, rows)
        for name in _SHARED:
            setattr(self, name, getattr(target, name))
        self.prompt = target.prompt[:1].expand(rows, -1)
        self.keep_scores, self.turn, self.listener = False, None, None
        self.tokens = [[] for _ in range(rows)]
        self._raw = self._barren = self._scored = None
        self.bound, self.width, self.nodes = bound, width, nodes
        self.cache = SlotCache(
            self.parts.plan, bound + nodes, device=target.cache.length.device, places=self.parts.places
        )
        self.cache.allocate_like(target.cache, rows)
        self.cache.bound(bound)
        device, position = self.device, target.next_position
        self.cache.hidden = torch.zeros(rows, bound, dtype=torch.bool, device=device)
        self.pending = torch.zeros(rows, dtype=torch.long, device=device)
        self.next_position = position.new_zeros(*position.shape[:-1], rows)
        self.alive = torch.zeros(rows, dtype=torch.bool, device=device)
        self.left = torch.zeros(rows, dtype=torch.long, device=device)
        self.ends = torch.tensor(sorted(target.eos), dtype=torch.long, device=device)
        self.lines = torch.zeros(rows, 2 * width + 2, dtype=torch.long, device=device)

    def keep(self, static: Static) -> None:
        """Says what a round replaces."""
        static.keep(self, "pending", "next_position", "alive", "left", "lines")
        static.keep(self.cache, "length")

    def load(self, target: TextTarget | SeatedTarget) -> None:
        """Seats the rows of a request behind its prompt, or those of a smaller seat."""
        rows, seated = target.batch, isinstance(target, SeatedTarget)
        self.cache.take_over(target.cache)
        hidden = target.cache.hidden
        self.cache.hidden.zero_()
        if hidden is not None:
            self.cache.hidden[:rows, : hidden.shape[1]] = hidden
        self.pending.zero_()[:rows] = target.pending
        self.next_position.zero_()[..., :rows] = target.next_position
        alive, left = (target.alive, target.left) if seated else _counted(target)
        self.alive.zero_()[:rows] = alive
        self.left.fill_(1)[:rows] = left

    def rooms(self, longest: int) -> Tensor:
        """As `BatchTarget.rooms`, int64 [R]."""
        return torch.where(self.alive, (self.left - 1).clamp(0, longest), 0)

    def commit(self, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        """As `TextTarget.commit`, and what `take` does of it there, for all rows at once."""
        failure, run = self._failure(evidence), run_of(draft, verdict)[0]
        failed = gather_nodes(failure, verdict.node[:, None])[:, 0].long() > 0
        self.lines = lines_of(verdict, failure, run)
        kept, stops = self._cut(run, verdict.depth + 1 - failed.long())
        self.paths = torch.where(self.alive, verdict.depth + 1, 0)
        self.cache.commit_counted(verdict.path, self.paths, moves=draft.tree.max_rank > 0)
        self.next_position = self.next_position + self.paths
        self.pending = verdict.correction
        self.left = self.left - torch.where(self.alive, kept, 0)
        self.alive = self.alive & ~stops & ~failed

    def _cut(self, run: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """`Stopping.cut` of all rows: how many of the first `count` values of a run are kept, and whether the row stops."""
        place = torch.arange(run.shape[1], device=run.device)
        room = self.left.clamp_min(1)
        end = torch.minimum(room, count)
        stops = (run[..., None] == self.ends).any(-1) & (place < end[:, None])
        first = torch.where(stops, place, run.shape[1]).amin(-1)
        return torch.minimum(end, first + 1), (room <= count) | (first < run.shape[1])


def _counted(target: TextTarget) -> tuple[Tensor, Tensor]:
    """Which rows of a request go on, and how many tokens each may still generate."""
    room = target.room or [_NO_LIMIT] * target.batch
    return torch.tensor(target.live, device=target.device), torch.tensor(room, device=target.device)

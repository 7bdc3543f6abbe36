"""The drafter's side of one multi-scale request: judge a block of rows, fill its islands, go on to the next block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.draft import Draft, Law
from mmspec.core.evidence import Evidence
from mmspec.core.keys import Keys
from mmspec.core.tree import chains
from mmspec.core.verdict import Verdict
from mmspec.imagegen.canvas import CanvasTarget
from mmspec.imagegen.multiscale.islands import island_order
from mmspec.imagegen.multiscale.low_res import sketch

if TYPE_CHECKING:
    from mmspec.imagegen.multiscale.mulo import MuLo


class MuLoState:
    """All images of a batch are in the same block of rows; those with fewer or smaller islands wait for its end.

    passes: of the low-resolution drafter.   candidates: int64 [B, total], what the upsampler offers.
    row: low-resolution rows judged so far.   order: int64 [B, K, M], places that the islands draw in turn, `total` for none.
    step: how many rounds of them are done.   late: per round, whether a value drawn before has to be fed beside.
    fresh: int64 [B, K'], places drawn in the last round, not fed yet.   again: first place of the judged block from which
    everything is fed once more, a host number.
    """

    def __init__(self, settings: MuLo, target: CanvasTarget):
        self.settings, self.low, self.passes = settings, settings.model, 0
        self.cells = target.geometry.code_index.to(target.device)
        self.candidates = target.values.clone()
        self.row = self.start = self.step = 0
        self.late: list[bool] = []
        self.order: Tensor | None = None
        self.fresh: Tensor | None = None
        self.again: int | None = None

    def propose(self, target: CanvasTarget, keys: Keys) -> Draft:
        if self.step < len(self.late):
            return self._fill(target)
        self._sketch(target, keys)
        # a block's rounds are numbered by its first place: how many the block before took, other rows had a say in
        keys.round = max(self.start, 1)
        return self._judge(target)

    def _sketch(self, target: CanvasTarget, keys: Keys) -> None:
        """Draws the next low-resolution rows and upsamples them."""
        settings, low = self.settings, self.low.geometry
        scale, done = settings.upsampler.scale, self.row
        rows = min(settings.rows or low.rows, low.rows - done)
        before = target.values.new_zeros(target.batch, 0, low.cols)
        if done:
            filled = target.values[:, self.cells].view(target.batch, -1, target.geometry.cols)
            before = (settings.downsampler or settings.upsampler).down(filled[:, : done * scale])
        new, passes = sketch(self.low, target.condition, guidance=target.guidance, warp=target.warp, keys=keys.child(done),
                             drafter=settings.decoding, before=before, rows=rows)  # fmt: skip
        self.passes += passes
        codes = settings.upsampler.up(torch.cat((before, new), 1))[:, done * scale :].flatten(1)
        first = done * scale * target.geometry.cols
        self.candidates[:, self.cells[first : first + codes.shape[1]]] = codes
        self.row += rows

    def _judge(self, target: CanvasTarget) -> Draft:
        """One chain over the block's candidates behind the last settled value, and beside it what has to be fed again."""
        cols, batch, device = target.geometry.cols, target.batch, target.device
        last = int(target.geometry.code_index[self.row * self.settings.upsampler.scale * cols - 1])
        root = max(self.start - 1, 0)  # value 0 is settled by the prefill
        chain = torch.arange(root, last + 1, device=device)
        extra = self._again(target, root)
        index = torch.cat((chain.expand(batch, -1), extra), 1)
        inside = index.clamp(max=target.total - 1)
        value = torch.where(target.known, target.values, self.candidates).gather(1, inside)
        wanted = torch.arange(index.shape[1], device=device) < len(chain) - 1
        tree = chains((len(chain) - 1,) + (0,) * extra.shape[1], device)
        self.start, self.fresh, self.late = last + 1, None, []
        return Draft(value, tree, Law("none"), index < target.total, index, wanted.expand_as(index))

    def _again(self, target: CanvasTarget, root: int) -> Tensor:
        """Places before the root to feed once more, int64 [B, n], `total` for none."""
        none = torch.empty(target.batch, 0, dtype=torch.long, device=target.device)
        if self.settings.stale:
            return none if self.fresh is None else torch.where(self.fresh == root, target.total, self.fresh)
        if self.again is None or self.again >= root:
            return none
        return torch.arange(self.again, root, device=target.device).expand(target.batch, -1)

    def _fill(self, target: CanvasTarget) -> Draft:
        """The predecessor of every island's next place, and beside it the values that no predecessor feeds."""
        wanted = self.order[..., self.step]
        before = torch.where(wanted < target.total, wanted - 1, target.total)
        known = target.known.gather(1, before.clamp(max=target.total - 1))
        index, valid = before, known & (before < target.total)
        if self.late[self.step]:
            alone = (self.fresh < target.total) & (self.fresh[..., None] != before[:, None]).all(-1)
            index, valid = torch.cat((before, self.fresh), 1), torch.cat((valid, alone), 1)
            index = torch.where(torch.arange(index.shape[1], device=index.device) < before.shape[1], index,
                                torch.where(valid, index, target.total))  # fmt: skip
        inside = index.clamp(max=target.total - 1)
        value = torch.where(target.known, target.values, self.candidates).gather(1, inside)
        draws = pad(wanted < target.total, (0, index.shape[1] - wanted.shape[1]), value=False)
        self.fresh, self.step = wanted, self.step + 1
        return Draft(value, chains((0,) * index.shape[1], target.device), Law("none"), valid, index, draws)

    def observe(self, target: CanvasTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        if self.row and self.fresh is None:  # the block was judged just now
            self._plan(target)

    def _plan(self, target: CanvasTarget) -> None:
        """Cuts what fell into islands; one transfer to the host says how many rounds they take."""
        geometry, total = target.geometry, target.total
        running = torch.tensor(target.live, device=target.device)[:, None]
        place = torch.arange(total, device=target.device)
        block = place < self.start
        fallen = block & ~target.known & running
        order = island_order(fallen[:, self.cells].view(-1, geometry.rows, geometry.cols))
        self.order = torch.where(order < 0, total, self.cells[order.clamp_min(0)])
        drawn = block & target.known & ~target.stored & (place > 0) & running  # the first failure, at most one a row
        first = torch.where(drawn, place, total).amin(1, keepdim=True)
        self.fresh, self.step = first, 0
        last = torch.cat((pad(first[..., None], (0, 0, 0, order.shape[1] - 1), value=total)[:, : order.shape[1]],
                          self.order), 2)  # fmt: skip
        late = ((last[..., :-1] < total) & (last[..., 1:] != last[..., :-1] + 1)).flatten(0, 1).any(0)
        self.again, *late = torch.cat((first.amin()[None], late.long())).tolist()
        self.late = [bool(x) for x in late]

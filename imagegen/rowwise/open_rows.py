from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence, Law, Verdict, gather_nodes
from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.sampling import draw
from mmspec.core.round.tree import chains
from mmspec.imagegen.any_order import AnyOrderTarget
from mmspec.imagegen.rowwise.row_schedule import row_spans


@dataclass(slots=True)
class OpenRowState:
    """A rows of each image, from its first incomplete row on. All tensors are [B, A]."""

    line: Tensor  # int64, the row's number
    count: Tensor  # int64, settled codes
    drafts: Tensor  # int64, drafted values behind the root
    runs: Tensor  # bool, whether the row is fed at all
    root: Tensor  # int64, the place before its next value
    known: Tensor  # bool, whether the root's value is settled; a stand-in is fed otherwise
    open: Tensor  # bool, whether all values before the row are settled


class OpenRows:
    """A chain per row with `window` drafted values; 0 drafts only the candidate for a row's first value. A row opens
    when the row above has `context` values. A draft comes from its place's distribution in the last round or, a place
    further on, from the last distribution of its row. Later rows are fed no further than the row above."""

    passes = 0

    def __init__(self, target: AnyOrderTarget, context: int, window: int):
        lines, device = row_spans(target.geometry), target.device
        self.start, self.codes, self.first, self.source = (
            torch.tensor(x, device=device)
            for x in zip(*((x.start, x.codes, x.first, x.source) for x in lines), strict=True)
        )
        longest = max(line.codes for line in lines)
        self.rows = min(len(lines), -(-longest // context) + 1)
        self.context, self.window, self.width = context, window, max(window, 1)
        self.tree = chains((self.width,) * self.rows + (0,), device)  # the last chain feeds the end of a completed row
        row = torch.arange(self.rows * self.width, device=device).view(self.rows, -1)
        self.law_row = pad(pad(row, (0, 1), value=-1).flatten(), (0, 1), value=-1)
        self.scores: Tensor | None = None  # float32 [B, A, W, V], distributions of the next drafts
        self.drawn: Tensor | None = None  # int64 [B, A], a first draft that was already drawn, or -1
        self.ready: Tensor | None = None  # bool [B, A], the row was fed in the last round
        self.slots: OpenRowState | None = None

    def propose(self, target: AnyOrderTarget, keys: Keys) -> Draft:
        counts = self._counts(target)
        top = (counts < self.codes).long().argmax(1)
        line = top[:, None] + torch.arange(self.rows, device=target.device)
        drawn = self._draw(target, keys, line) if self.scores is not None else 0
        slots = self.slots = self._slots(target, counts, line)
        step = torch.arange(self.width + 1, device=target.device)
        fed = slots.runs[..., None] & (step <= slots.drafts[..., None])  # [B, A, 1 + W]
        index = torch.where(fed, slots.root[..., None] + step, target.total)
        token = torch.zeros_like(index)
        token[..., 0] = self._roots(target, counts, slots)
        token[..., 1:] = drawn
        # the first value of a row that opens early waits until it is accepted as a candidate
        wanted = (slots.open | (slots.count > 0))[..., None] | (step > 0)
        if self.window:
            wanted = (step >= 0) & (line == top[:, None])[..., None]
        fed = fed & (slots.known[..., None] | (step > 0))
        end, late = self._late_end(target, top, slots)
        completed = target.values.gather(1, end.clamp(max=target.total - 1))
        value, valid, index = (
            torch.cat((x.flatten(1), y), 1) for x, y in ((token, completed), (fed, late), (index, end))
        )
        law = Law("none")
        if self.scores is not None:
            law = Law("without_replacement", self.law_row, self.scores.flatten(1, 2))
        wanted = pad(wanted.expand_as(fed).flatten(1), (0, 1), value=False)
        return Draft(value, self.tree, law, valid, index, wanted)

    def _counts(self, target: AnyOrderTarget) -> Tensor:
        """Return int64 [B, L], the number of settled codes of every row."""
        total = pad(target.known.long().cumsum(1), (1, 0))
        return total[:, self.start + self.codes] - total[:, self.start]

    def _slots(self, target: AnyOrderTarget, counts: Tensor, line: Tensor) -> OpenRowState:
        exists, line = line < len(self.start), line.clamp(max=len(self.start) - 1)
        over = (line - 1).clamp_min(0)
        count, above = counts.gather(1, line), counts.gather(1, over)
        free = (above == self.codes[over]) | (line == 0)
        opened = (count > 0) | free | (~self.first[line] & (above >= self.context))
        runs = exists & (count < self.codes[line]) & opened
        root = self.start[line] + count - 1
        known = target.known.gather(1, root.clamp_min(0))
        if self.window:
            room = torch.where(self.first[line] | (line == 0), self.codes[line], above)
            drafts = torch.minimum(self.codes[line], room).sub(count).clamp(0, self.window)
        else:
            drafts = (count == 0).long()
        drafts = drafts * 0 if self.ready is None else torch.where(self.ready, drafts, 0)
        return OpenRowState(line, count, drafts, runs, root, known, free)

    def _draw(self, target: AnyOrderTarget, keys: Keys, line: Tensor) -> Tensor:
        """Draw the drafts int64 [B, A, W] after moving the distributions to the current slots of their rows."""
        slot = (line - self.slots.line[:, :1]).clamp(0, self.rows)
        rows = torch.arange(target.batch, device=slot.device)[:, None]
        there = slot < self.rows
        slot = slot.clamp(max=self.rows - 1)
        self.scores, self.drawn = self.scores[rows, slot], self.drawn[rows, slot]
        self.ready = self.ready[rows, slot] & there
        if target.greedy:
            return self.scores.argmax(-1)
        value = draw(self.scores, keys.uniform(Purpose.DRAFT, self.rows, self.width))
        value[..., 0] = torch.where(self.drawn >= 0, self.drawn, value[..., 0])
        return value

    def _roots(self, target: AnyOrderTarget, counts: Tensor, slots: OpenRowState) -> Tensor:
        source = self.source[slots.line]
        newest = self.start[source] + counts.gather(1, source) - 1
        return target.values.gather(1, torch.where(slots.known, slots.root, newest).clamp_min(0))

    def _late_end(self, target: AnyOrderTarget, top: Tensor, slots: OpenRowState) -> tuple[Tensor, Tensor]:
        """Return the place [B, 1] of the last code above the first open row, and whether it still has to be fed."""
        above = (top - 1).clamp_min(0)
        end = (self.start[above] + self.codes[above] - 1)[:, None]
        late = (top[:, None] > 0) & ~target.stored.gather(1, end) & (slots.root[:, :1] != end)
        return torch.where(late, end, target.total), late

    def observe(self, target: AnyOrderTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        slots = self.slots
        if slots is None:
            return
        gained = self._counts(target).gather(1, slots.line) - slots.count
        chain = torch.arange(self.rows, device=gained.device) * (self.width + 1)
        ahead = torch.arange(self.width, device=gained.device)
        node = chain[:, None] + (gained[..., None] + ahead).minimum(slots.drafts[..., None])
        batch, size = target.batch, evidence.scores.shape[-1]
        self.scores = gather_nodes(evidence.scores, node.flatten(1)).view(batch, self.rows, self.width, size)
        # a correction that settled nothing was drawn from its place's distribution: it is the next draft there
        behind = verdict.correction.gather(1, (chain + gained).clamp(max=draft.tree.nodes - 1))
        self.drawn = torch.where(gained <= slots.drafts, behind, -1)
        self.ready = slots.runs

"""A target that judges a window as plain decoding would fill it: one step after the other, in passes of the same shape."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, gather_nodes
from mmspec.imagegen.continuous.evidence import TokenEvidence
from mmspec.imagegen.continuous.window import WindowDraft
from mmspec.imagegen.continuous.window_target import WindowTarget


class StepwiseTarget(WindowTarget):
    """For tolerance 0, whose output is plain decoding's bit for bit: the rounding of one large pass over all steps would
    reach it. A step is judged given the drafts of the earlier ones, and only while the drafts of some row are all its own
    draws: a round makes as many passes as it settles steps, and counts as one in the statistics.
    """

    @torch.no_grad()
    def score(self, draft: Draft) -> TokenEvidence:
        if not isinstance(draft, WindowDraft):
            return super().score(draft)
        kept = self._values.clone(), self._known.clone(), self.filled
        try:
            return self._walk_steps(draft)
        finally:
            self._values.copy_(kept[0])
            self._known.copy_(kept[1])
            self.filled = kept[2]

    def _walk_steps(self, draft: WindowDraft) -> TokenEvidence:
        """Takes drafts for known, step by step; the caller puts everything back."""
        own, bad = torch.zeros_like(draft.value), torch.zeros_like(draft.step, dtype=torch.bool)
        nodes = torch.arange(draft.step.shape[1], device=self.device).expand_as(draft.index)
        node_of = torch.zeros_like(self._known, dtype=torch.long).scatter_(1, draft.index, nodes)
        node_of[:, -1] = 0  # pads
        for _ in range(draft.steps):
            position = self.next_positions()
            part = super().score(self.ask(position))
            node = node_of.gather(1, position)
            own.scatter_(1, node[..., None].expand_as(part.own), part.own)
            bad.scatter_(1, node, part.bad)
            value = gather_nodes(draft.value, node)
            if not self._believed(part.own, value, position):
                break
            self._values.scatter_(1, position[..., None].expand_as(value), value)
            self._known.scatter_(1, position, True)
            counts = (position < self.total).sum(1).tolist()
            self.filled = [filled + count for filled, count in zip(self.filled, counts, strict=True)]
        return TokenEvidence(mean=own, bad=bad, own=own)

    def _believed(self, own: Tensor, value: Tensor, position: Tensor) -> bool:
        """Whether the drafts of some row are its own draws."""
        there = position < self.total
        equal = ((own == value).all(-1) | ~there).all(1) & there.any(1)
        return bool(equal.any())

"""Judging several rows of an image at once."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.core.draft import Draft, expand_tree, gather_nodes
from mmspec.core.evidence import Evidence
from mmspec.core.rules.base import Weights
from mmspec.core.rules.laws import law_row
from mmspec.core.sample import TINY, law_of, mass_at, residual_law
from mmspec.core.verdict import Verdict
from mmspec.imagegen.canvas_rule import CanvasRule, is_root, standing


class RowParallel(CanvasRule):
    """Token-wise rejection along every chain, one chain per row of the image. Relaxed: a row is judged, and settled, before
    the rows above it are complete. Where only one row is open at a time the law is that of plain decoding.

    A chain goes on with probability min(1, p / q) a value; behind its last value stands a draw from [p - q]+, or from p
    where nothing was rejected. A greedy request goes on while the drafted value is the argmax.
    """

    name = "row parallel (relaxed)"
    proven_for = frozenset({("categorical", "without_replacement"), ("none", "none")})

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        if draft.law.scores is None:
            return Weights(torch.ones(draft.value.shape, device=draft.value.device), "mask")
        parent = draft.tree.parent
        if evidence.greedy:
            best = evidence.scores.argmax(-1)
            hit = draft.value == best.gather(1, expand_tree(parent, draft.batch))
            return Weights(hit.float(), "mask")
        p, q = law_of(evidence.scores), law_of(draft.law.scores)
        ratio = mass_at(p, parent, draft.value) / mass_at(q, law_row(draft)[parent], draft.value).clamp_min(TINY)
        return Weights(ratio, "mask")

    def select(self, weights: Weights, uniform: Tensor, draft: Draft) -> Verdict:
        passed = super().select(weights, uniform, draft)
        known = is_root(draft.tree) if draft.valid is None else is_root(draft.tree) & draft.valid
        passed.keep = standing(draft.tree, passed.keep) & (passed.keep | known)
        passed.depth = (passed.keep & ~is_root(draft.tree)).sum(-1)
        return passed

    def law(self, evidence: Evidence, draft: Draft, end: Tensor) -> Tensor:
        p = super().law(evidence, draft, end)
        if draft.law.scores is None:
            return p
        child = (end + 1).clamp(max=draft.tree.nodes - 1)
        rejected = (expand_tree(draft.tree.parent, draft.batch).gather(1, child) == end) & (child > end)
        rejected = rejected if draft.valid is None else rejected & draft.valid.gather(1, child)
        q = law_of(gather_nodes(draft.law.scores, law_row(draft)[end]))
        flat = residual_law(p.flatten(0, 1), q.flatten(0, 1), p.new_ones(end.numel()), rejected.flatten().to(p.dtype))
        return flat.view_as(p)

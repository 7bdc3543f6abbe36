from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from mmspec.core.round.draft import Draft, Evidence
from mmspec.core.round.rules.base import law_row, live_nodes
from mmspec.kernels.dispatch import on_kernels
from mmspec.kernels.law import law_of, law_rows, mass_at
from mmspec.kernels.law_pair import law_pair
from mmspec.kernels.log_law import LogLaw
from mmspec.kernels.reduced_law import ReducedLaw, spread_scores


@dataclass(slots=True)
class Laws:
    """Both distributions of a draft with a categorical q record, and their probabilities of its tokens."""

    p: Tensor | LogLaw  # [B, N, V], the target's distribution after each node
    q: Tensor | LogLaw | ReducedLaw  # [B, M, V], the distributions from which children were drawn
    child_p: Tensor  # float [B, N], p of each node's own token after its parent
    child_q: Tensor  # float [B, N], likewise
    token: Tensor  # int64 [B, N], in range even at invalid nodes
    row: Tensor  # int64 [N], the row of q for a node's children, 0 for leaves
    origin: Tensor  # int64 [R, N], the row of q from which each node was drawn
    live: Tensor | None  # bool [B, N], see `live_nodes`

    @property
    def lumped(self) -> Laws:
        q = self.q
        if not isinstance(q, ReducedLaw):
            return self
        token = q.place(self.token, self.origin)
        return replace(self, p=q.lumped(self.p, self.row), q=q.with_rest(), token=token)


def laws_of(evidence: Evidence, draft: Draft) -> Laws:
    scores, law = _recorded(evidence.scores, draft), draft.law
    live, parent = live_nodes(evidence, draft), draft.tree.parent
    if law.row is not None and isinstance(scores, Tensor) and on_kernels(scores):
        pair = law_pair(evidence.scores, scores, parent, law.row, draft.value)
        return Laws(pair.p, pair.q, pair.child_p, pair.child_q, pair.token, pair.row, pair.origin, live)
    p = law_rows(evidence.scores)
    q = p if scores is None else law_rows(scores) if isinstance(scores, Tensor) else scores
    row, token = law_row(draft), draft.value.clamp(0, p.shape[-1] - 1)
    origin = row[parent]
    return Laws(p, q, mass_at(p, parent, token), mass_at(q, origin, token), token, row, origin, live)


def _recorded(target: Tensor, draft: Draft) -> Tensor | ReducedLaw | None:
    """Return None for a root alone."""
    scores, ids, vocab = draft.law.scores, draft.law.ids, target.shape[-1]
    if scores is None:
        return None
    if ids is None:
        if scores.shape[-1] != vocab:
            raise ValueError(
                f"q record: expected scores over the target's {vocab} values, got {scores.shape[-1]}; "
                "map the drafter's vocabulary onto the target's"
            )
        return scores
    if ids.shape[-1] != scores.shape[-1] or (ids.dim() > 1 and ids.shape != scores.shape):
        raise ValueError(f"q record: expected scores of the {ids.shape[-1]} values in its ids, got {scores.shape[-1]}")
    return spread_scores(scores, ids, vocab) if on_kernels(scores) else ReducedLaw(law_of(scores), ids, vocab)

"""Logits processors on a drafter's own scores, along the paths of a growing draft, so that it drafts what they allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from mmspec.vlm.processors.branches import Branch
from mmspec.vlm.processors.nodes import NodeProcessors


class ProcessorGuide:
    """The request's logits processors while a draft grows level by level.

    A drafter that does not know a grammar, a ban or a penalty drafts tokens that the target's processors rule out a moment
    later. The guide applies the same processors to the drafter's scores at every node. The guided scores are the law that the
    values are drawn from, so they stand in the q record, and every exact rule stays exact.

    Args:
        processors: the request's processors, opened.
        prompt: int64 [B, P].
        tokens: per row, the generated ids, of which the last is the root.
        live: per row, whether it goes on; the scores of other rows stay as they are.
        vocab: V, the width of the target's scores.
    """

    def __init__(
        self, processors: NodeProcessors, prompt: Tensor, tokens: Sequence[list[int]], live: Sequence[bool], vocab: int
    ):
        self.processors, self.live, self.vocab, self._at_root = processors, live, vocab, True
        # per row, the nodes of the last level: copies of the processors, or the ids down to each node int64 [n, L]
        self._nodes: list[list[Branch | None] | Tensor]
        if processors.own:
            self._nodes = [[branch] for branch in processors.committed]
        else:
            self._nodes = [
                torch.cat([row, row.new_tensor(ids[:-1])])[None] for row, ids in zip(prompt, tokens, strict=True)
            ]

    @classmethod
    def of(cls, processors: NodeProcessors, *request: Any) -> Self | None:
        """The guide of a request, whose arguments follow; None where no processor looks at the text so far."""
        return cls(processors, *request) if processors.bound else None

    def scores(self, scores: Tensor, token: Tensor, parent: Tensor, ids: Tensor | None) -> Tensor:
        """The processed scores of one level of nodes.

        Args:
            scores: float32 [B, n, k], the drafter's log-weights for the children of the nodes.
            token: int64 [B, n], the nodes' own tokens; the root for the first call.
            parent: int64 [B, n], the place of each node's parent among the nodes of the last call.
            ids: int64 [k], the tokens that the columns of a reduced vocabulary stand for; None for all.

        Returns:
            float32 [B, n, k], minus infinity for tokens that are ruled out, and throughout below a node that is.
        """
        known = scores
        if ids is not None:
            known = scores.new_full((*scores.shape[:2], self.vocab), -torch.inf)
            known[..., ids] = scores
        guided = known.clone()
        for row in range(len(scores)):
            if self.live[row]:
                guided[row] = self._row(row, known[row], token[row], parent[row].tolist())
        self._at_root = False
        return guided if ids is None else guided[..., ids]

    def _row(self, row: int, scores: Tensor, token: Tensor, parent: list[int]) -> Tensor:
        nodes = self._nodes[row]
        if isinstance(nodes, Tensor):
            self._nodes[row] = prefix = torch.cat([nodes[parent], token[:, None]], 1)
            return self.processors.rows[row](prefix, scores)
        self._nodes[row] = reached = [
            _reached(nodes[place], one, own, is_root=self._at_root)
            for place, one, own in zip(parent, token, scores, strict=True)
        ]
        barred = torch.full_like(scores[0], -torch.inf)
        return torch.stack([barred if node is None else node.scores for node in reached])


def _reached(parent: Branch | None, token: Tensor, scores: Tensor, *, is_root: bool) -> Branch | None:
    """The branch behind a drafted token; None where the processors rule the token out or fail behind it."""
    if parent is None or (not is_root and parent.rules_out(token)):
        return None
    node = parent.child(token, scores)
    return node if node.error is None else None

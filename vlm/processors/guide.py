"""Logits processors on a drafter's scores along the paths of a growing draft, so that it drafts allowed tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from mmspec.vlm.processors.branches import Branch
from mmspec.vlm.processors.nodes import NodeProcessors


class ProcessorGuide:
    """The request's logits processors, after `open`, on a draft that grows level by level, so that it drafts allowed
    tokens. Draft tokens are drawn from the guided scores, which also become the recorded draft distribution q, so exact
    rules remain exact. The prompt is int64 [B, P], and `tokens` are the generated ids per row, root last. Rows that are
    not live keep their scores."""

    def __init__(
        self, processors: NodeProcessors, prompt: Tensor, tokens: Sequence[list[int]], live: Sequence[bool], vocab: int
    ):
        self.processors, self.live, self.vocab, self._at_root = processors, live, vocab, True
        # per row, the nodes of the last level: copies of the processors, or the prefix of each node, int64 [n, L]
        self._nodes: list[list[Branch | None] | Tensor]
        if processors.own:
            self._nodes = [[branch] for branch in processors.committed]
        else:
            self._nodes = [
                torch.cat([row, row.new_tensor(ids[:-1])])[None] for row, ids in zip(prompt, tokens, strict=True)
            ]

    @classmethod
    def of(cls, processors: NodeProcessors, *request: Any) -> Self | None:
        """Return the guide of a request with the constructor's arguments; None if no processor reads the prefix."""
        return cls(processors, *request) if processors.bound else None

    def scores(self, scores: Tensor, token: Tensor, parent: Tensor, ids: Tensor | None) -> Tensor:
        """Return a level's scores [B, n, k], minus infinity for excluded tokens and all children of excluded nodes.
        `scores` float32 [B, n, k] are the children's log-weights, `token` int64 [B, n] the nodes' own, at first the
        root, and `parent` int64 [B, n] indices in the previous call. `ids` int64 [k] is a reduced vocabulary, None for
        the whole."""
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
            _reached(nodes[place], own_token, own_scores, is_root=self._at_root)
            for place, own_token, own_scores in zip(parent, token, scores, strict=True)
        ]
        barred = torch.full_like(scores[0], -torch.inf)
        return torch.stack([barred if node is None else node.scores for node in reached])


def _reached(parent: Branch | None, token: Tensor, scores: Tensor, *, is_root: bool) -> Branch | None:
    """Return the branch after a draft token; None if the processors exclude the token or fail after it."""
    if parent is None or (not is_root and parent.rules_out(token)):
        return None
    node = parent.child(token, scores)
    return node if node.error is None else None

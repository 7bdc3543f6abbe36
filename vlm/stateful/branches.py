"""Logits processors along one row's path: a copy of them at every node of a draft."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.vlm.stateful.copies import Fork


class Branch:
    """A batch of which one row is followed, at one step of it, behind the processors' call for that step.

    Processors are called with all rows, as `transformers.generate` calls them. The other rows start with their own prompts and
    go on with the likeliest tokens that the processors leave them, which any grammar accepts; the proof shows that they do not
    change the scores of the row that is followed.

    row: the row that is followed.
    fork: the processors.
    ids: int64 [B, L], the rows.
    logits, scores: float32 [V], of the row, before and after the processors; None before the first call.
    error: what the processors raised in the call for this step, which a drafted token that they rule out may cause.
    """

    def __init__(self, row: int, fork: Fork, ids: Tensor, following: Tensor):
        self.row, self.fork, self.ids, self._following = row, fork, ids, following
        self.logits: Tensor | None = None
        self.scores: Tensor | None = None
        self.error: Exception | None = None

    @classmethod
    def start(cls, row: int, fork: Fork, prompt: Tensor) -> Branch:
        """Return the branch of a row before its first step.

        Args:
            row: the row to follow.
            fork: the processors before their first call.
            prompt: int64 [B, P].
        """
        return cls(row, fork, prompt[:, :-1], prompt[:, -1])

    def child(self, token: Tensor, logits: Tensor) -> Branch:
        """Return the branch one step further on; this one stays as it is.

        Args:
            token: int64 [], the row's next token.
            logits: float32 [V], the row's logits behind it.
        """
        column = self._following.clone()
        column[self.row] = token
        new = Branch(self.row, self.fork.fork(), torch.cat([self.ids, column[:, None]], 1), column)
        new.logits = new.scores = logits
        try:
            scores = new.fork(new.ids, logits.expand(len(column), -1))
        except Exception as error:  # raised again where the token is kept
            new.error = error
            return new
        new.scores, new._following = scores[self.row], scores.argmax(-1)
        return new

    def rules_out(self, token: Tensor) -> bool:
        """Whether the row's next token cannot be `token`, int64 []."""
        return self.error is not None or bool((self.scores[token] == -torch.inf) & self.scores.isfinite().any())


class Pending:
    """A node that no row can keep, so its processors were not called: `branch` calls them after all."""

    def __init__(self, parent: Branch | Pending, token: Tensor, logits: Tensor):
        self.parent, self.token, self.logits = parent, token, logits

    def branch(self) -> Branch:
        """Return the branch behind the node."""
        parent = self.parent.branch() if isinstance(self.parent, Pending) else self.parent
        return parent.child(self.token, self.logits)

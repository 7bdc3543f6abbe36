"""The rows of a request: the tokens and scores that they have generated, and where they end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import StoppingCriteriaList

from mmspec.core.batch_target import NOT_FINITE, BatchTarget
from mmspec.core.draft import Evidence
from mmspec.vlm.stopping import Stopping

FAILURES = {
    1: NOT_FINITE,
    2: "expected a token to draw, got all of them ruled out by the logits processors",
}


class GeneratedRows(BatchTarget):
    """A target's rows of generated tokens.

    Args:
        prompt: int64 [B, P].
        criteria: the request's stopping criteria.
        pad: the token behind a row that has ended.
        listener: called with a row, its new tokens and the number of accepted drafts among them; None for no listener.
        keep_scores: scores and logits of every step are kept.
        show_scores: stopping criteria get the scores of every step.
        goes_on: rows are read on after they have ended, so that the cache then holds exactly their tokens but the last.

    tokens: per row, the generated ids.
    scores, logits: per row, float32 [V] of each generated token, with `keep_scores`.
    """

    def __init__(
        self,
        prompt: Tensor,
        criteria: StoppingCriteriaList,
        pad: int,
        *,
        listener: Callable[[int, list[int], int], None] | None = None,
        keep_scores: bool = False,
        show_scores: bool = False,
        goes_on: bool = False,
    ):
        super().__init__(prompt.shape[0])
        self.prompt, self.pad, self.stopping = prompt, pad, Stopping(criteria, prompt, pad)
        self.listener, self.keep_scores, self.show_scores, self.goes_on = listener, keep_scores, show_scores, goes_on
        self.tokens: list[list[int]] = [[] for _ in range(self.batch)]
        self.scores: list[list[Tensor]] = [[] for _ in range(self.batch)]
        self.logits: list[list[Tensor]] = [[] for _ in range(self.batch)]
        # of the last pass: its logits before the processors, and the evidence whose scores the commit keeps
        self._raw: Tensor | None = None
        self._scored: Evidence | None = None

    @property
    def emitted(self) -> list[int]:
        return [len(row) for row in self.tokens]

    @property
    def most(self) -> int | None:
        """Tokens a row may generate; None without a limit."""
        return self.stopping.most

    @property
    def eos(self) -> frozenset[int]:
        """Ids that stop a row."""
        return frozenset(self.stopping.eos)

    @property
    def room(self) -> list[int] | None:
        return None if self.most is None else [self.most - count for count in self.emitted]

    @property
    def device(self) -> torch.device:
        return self.prompt.device

    def commit_row(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        """Appends a run to a live row, see `BatchTarget.commit_row`.   failure: the key in FAILURES, 0 for none."""
        kept, stop = self.stopping.cut(row, self.tokens[row], run) if run else ([], False)
        before = len(self.tokens[row])
        self.tokens[row] += kept
        self.live[row] = not stop
        if self._scored is not None:
            self.record(row, len(kept))
        if self.stopping.others:
            self._apply_criteria()
            kept = self.tokens[row][before:]
        if self.goes_on:
            del self.paths[row][len(kept) :]
        if failure and self.live[row]:
            self.fail(row, FAILURES[failure], f"{len(self.tokens[row])} generated tokens")
        accepted = min(len(kept), depth)
        if self.listener is not None:
            self.listener(row, kept, accepted)
        return accepted

    def record(self, row: int, count: int) -> None:
        """Keep a row's scores of the last round, of its first `count` tokens."""
        for node in self.paths[row][:count]:
            self.scores[row].append(self._scored.scores[row, node])
            self.logits[row].append(self._raw[row, node])

    def _apply_criteria(self) -> None:
        """Ends rows where stopping criteria of all rows do, which may lie behind."""
        ended = self.stopping.apply_criteria(self.tokens, self.live, self.scores if self.show_scores else None)
        for row, length in ended.items():
            self.live[row] = False
            self.errors.pop(row, None)
            for kept in (self.tokens[row], self.scores[row], self.logits[row]):
                del kept[length:]

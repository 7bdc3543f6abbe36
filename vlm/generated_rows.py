"""The rows of a request: the tokens and scores that they have generated, and where they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from mmspec.core.batch_target import NOT_FINITE, BatchTarget
from mmspec.core.draft import Evidence


class Stopping:
    """Ends rows where `transformers.generate`, one token at a time, ends them.

    Ids that end a row, and its longest length, are looked up in every run of accepted tokens. All other criteria are called
    once a step with all rows in their order, those that have ended included, as soon as every live row has reached the step.
    They may therefore keep state, or know rows by their place. A row that is ahead is cut back to where they end it.

    As in transformers, a row that has ended is padded where an eos id is set; else all rows go on until every one has ended.

    eos: ids that end a row.   most: tokens a row may generate, None without a limit.   others: all other criteria.

    Args:
        criteria: the request's stopping criteria.
        prompt: int64 [B, P].
        pad: the token behind a row that has ended.
    """

    def __init__(self, criteria: StoppingCriteriaList, prompt: Tensor, pad: int = 0):
        self.prompt, self.pad = prompt, pad
        self.eos = {int(i) for c in criteria if type(c) is EosTokenCriteria for i in c.eos_token_id.flatten().tolist()}
        lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
        self.most = min(lengths) - prompt.shape[1] if lengths else None
        self.others = StoppingCriteriaList(
            [c for c in criteria if type(c) not in (EosTokenCriteria, MaxLengthCriteria)]
        )
        self.pads = any(hasattr(c, "eos_token_id") for c in criteria)
        self.step = 0  # tokens of a row that the other criteria have seen
        self._lengths: list[int | None] = [None] * len(prompt)  # of rows that have ended by them
        self._scores: list[Tensor] = []

    def cut(self, row: int, tokens: list[int], run: list[int]) -> tuple[list[int], bool]:
        """Cut a run where an eos id or the longest length ends the row.

        Args:
            row: the row.
            tokens: what it has generated before.
            run: the tokens to add.

        Returns:
            The part of `run` that the row keeps, and whether it ends there.
        """
        room = len(run) + 1 if self.most is None else max(self.most - len(tokens), 1)
        end, stop = min(room, len(run)), room <= len(run)
        for i, token in enumerate(run[:end]):
            if token in self.eos:
                return run[: i + 1], True
        return run[:end], stop

    def apply_criteria(
        self, tokens: Sequence[list[int]], live: Sequence[bool], scores: Sequence[list[Tensor]] | None
    ) -> dict[int, int]:
        """Call the other criteria for every step that all rows have reached.

        Args:
            tokens: per row, the generated ids.
            live: per row, whether it goes on.
            scores: per row and step float32 [V], where the request keeps them; None else.

        Returns:
            By row, the length at which it has ended; only rows that these calls end.
        """
        ended: dict[int, int] = {}
        while self.others and self._reached(tokens, live):
            self.step += 1
            over = self.others(self._ids(tokens), self._step_scores(scores))
            over = torch.as_tensor(over).expand(len(tokens)).tolist()
            for row, stops in enumerate(over):
                own = not live[row] and len(tokens[row]) <= self.step
                if self._lengths[row] is None and (stops or own):
                    self._lengths[row] = min(self.step, len(tokens[row]))
                    if self.pads and not own:
                        ended[row] = self._lengths[row]
            if not self.pads and None not in self._lengths:
                return {row: self.step for row, alive in enumerate(live) if alive or len(tokens[row]) > self.step}
        return ended

    def _reached(self, tokens: Sequence[list[int]], live: Sequence[bool]) -> bool:
        """Whether transformers makes a further call, and all it needs is there."""
        if None not in self._lengths:
            return False
        there = [len(row) > self.step for row in tokens]
        ended = [length is not None for length in self._lengths]
        waits = [alive and not (there[row] or (ended[row] and self.pads)) for row, alive in enumerate(live)]
        return not any(waits) and any(here and not over for here, over in zip(there, ended, strict=True))

    def _ids(self, tokens: Sequence[list[int]]) -> Tensor:
        """int64 [B, P + step], all rows at the step."""
        rows = []
        for row, length in zip(tokens, self._lengths, strict=True):
            kept = row[: self.step if length is None or not self.pads else min(length, self.step)]
            rows.append(kept + [self.pad] * (self.step - len(kept)))
        tail = torch.tensor(rows, dtype=self.prompt.dtype, device=self.prompt.device)
        return torch.cat([self.prompt, tail], 1)

    def _step_scores(self, scores: Sequence[list[Tensor]] | None) -> tuple[Tensor, ...] | None:
        """The scores of every step, float32 [B, V] each; a row that has ended repeats its last."""
        if scores is None:
            return None
        blank = torch.full_like(next(row[0] for row in scores if row), torch.nan)
        self._scores.append(torch.stack([row[min(self.step, len(row)) - 1] if row else blank for row in scores]))
        return tuple(self._scores)


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

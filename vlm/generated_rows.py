"""The rows of a request: their generated tokens and scores, and the criteria that end them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from mmspec.core.round.batch_target import NOT_FINITE, BatchTarget
from mmspec.core.round.draft import Evidence


class Stopping:
    """The stopping criteria of a request on a prompt int64 [B, P], which end rows at the same token as
    `transformers.generate`.

    Eos ids and the length limit are looked up in every run of accepted tokens. All other criteria are called once per
    step with all rows, as soon as every live row has reached the step. They may thus store state or depend on the order
    of rows; a row that is ahead is cut back to the step at which they end it. As in transformers, ended rows are padded
    with `pad` if an eos id is set; otherwise all rows continue until all have ended. `most` is None without a limit of
    generated tokens."""

    def __init__(self, criteria: StoppingCriteriaList, prompt: Tensor, pad: int = 0):
        self.prompt, self.pad = prompt, pad
        self.eos = {int(i) for c in criteria if type(c) is EosTokenCriteria for i in c.eos_token_id.flatten().tolist()}
        lengths = [c.max_length for c in criteria if type(c) is MaxLengthCriteria]
        self.most = min(lengths) - prompt.shape[1] if lengths else None
        self.others = StoppingCriteriaList(
            [c for c in criteria if type(c) not in (EosTokenCriteria, MaxLengthCriteria)]
        )
        self.pads = any(hasattr(c, "eos_token_id") for c in criteria)
        self.step = 0  # the number of tokens per row that the other criteria have seen
        self._lengths: list[int | None] = [None] * len(prompt)  # lengths of rows that have ended
        self._scores: list[Tensor] = []

    def cut(self, row: int, tokens: list[int], run: list[int]) -> tuple[list[int], bool]:
        """Return the part of `run` that belongs to the row, which an eos id or the length limit ends, and whether it
        ends there. `tokens` are the generated tokens before the run."""
        room = len(run) + 1 if self.most is None else max(self.most - len(tokens), 1)
        end, stop = min(room, len(run)), room <= len(run)
        for i, token in enumerate(run[:end]):
            if token in self.eos:
                return run[: i + 1], True
        return run[:end], stop

    def apply_criteria(
        self, tokens: Sequence[list[int]], live: Sequence[bool], scores: Sequence[list[Tensor]] | None
    ) -> dict[int, int]:
        """Call the other criteria for every step that all rows have reached, and return the lengths of rows that they
        have ended. `scores` holds float32 [V] per row and step; None if the request does not store them."""
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
        """Return whether transformers would make a further call, and all rows have reached its step."""
        if None not in self._lengths:
            return False
        there = [len(row) > self.step for row in tokens]
        ended = [length is not None for length in self._lengths]
        waits = [alive and not (there[row] or (ended[row] and self.pads)) for row, alive in enumerate(live)]
        return not any(waits) and any(here and not over for here, over in zip(there, ended, strict=True))

    def _ids(self, tokens: Sequence[list[int]]) -> Tensor:
        """Return the ids of all rows up to the step, int64 [B, P + step]."""
        rows = []
        for row, length in zip(tokens, self._lengths, strict=True):
            own = row[: self.step if length is None or not self.pads else min(length, self.step)]
            rows.append(own + [self.pad] * (self.step - len(own)))
        tail = torch.tensor(rows, dtype=self.prompt.dtype, device=self.prompt.device)
        return torch.cat([self.prompt, tail], 1)

    def _step_scores(self, scores: Sequence[list[Tensor]] | None) -> tuple[Tensor, ...] | None:
        """Return the scores of every step, float32 [B, V] each; an ended row repeats its last scores."""
        if scores is None:
            return None
        blank = torch.full_like(next(row[0] for row in scores if row), torch.nan)
        self._scores.append(torch.stack([row[min(self.step, len(row)) - 1] if row else blank for row in scores]))
        return tuple(self._scores)


FAILURES = {
    1: NOT_FINITE,
    2: "expected a token to draw, got all tokens ruled out by the logits processors",
}


class GeneratedRows(BatchTarget):
    """The rows of a target behind a prompt int64 [B, P], with their generated tokens. With `keep_scores`, `scores` and
    `logits` (before the processors) are float32 [V] of each token. The listener is called with a row, its new tokens
    and the number of accepted draft tokens among them. With `goes_on` the target reads on after a row has ended; the
    cache then holds exactly its tokens but the last. `show_scores` gives stopping criteria the scores of every step."""

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
        # of the last pass: its logits before the processors, and the evidence whose scores the commit stores
        self._raw: Tensor | None = None
        self._scored: Evidence | None = None

    @property
    def emitted(self) -> list[int]:
        return [len(row) for row in self.tokens]

    @property
    def most(self) -> int | None:
        return self.stopping.most

    @property
    def eos(self) -> frozenset[int]:
        return frozenset(self.stopping.eos)

    @property
    def room(self) -> list[int] | None:
        return None if self.most is None else [self.most - count for count in self.emitted]

    @property
    def device(self) -> torch.device:
        return self.prompt.device

    def commit_row(self, row: int, depth: int, failure: int, run: list[int]) -> int:
        """Append a run to a live row, see `BatchTarget.commit_row`; `failure` is a key in FAILURES, or 0."""
        new, stop = self.stopping.cut(row, self.tokens[row], run) if run else ([], False)
        before = len(self.tokens[row])
        self.tokens[row] += new
        self.live[row] = not stop
        if self._scored is not None:
            self.record(row, len(new))
        if self.stopping.others:
            self._apply_criteria()
            new = self.tokens[row][before:]
        if self.goes_on:
            del self.paths[row][len(new) :]
        if failure and self.live[row]:
            self.fail(row, FAILURES[failure], f"{len(self.tokens[row])} generated tokens")
        accepted = min(len(new), depth)
        if self.listener is not None:
            self.listener(row, new, accepted)
        return accepted

    def record(self, row: int, count: int) -> None:
        for node in self.paths[row][:count]:
            self.scores[row].append(self._scored.scores[row, node])
            self.logits[row].append(self._raw[row, node])

    def _apply_criteria(self) -> None:
        """End rows by the other stopping criteria, possibly at an earlier token than their last."""
        ended = self.stopping.apply_criteria(self.tokens, self.live, self.scores if self.show_scores else None)
        for row, length in ended.items():
            self.live[row] = False
            self.errors.pop(row, None)
            for values in (self.tokens[row], self.scores[row], self.logits[row]):
                del values[length:]

"""Logits processors along a row's path: a copy at every draft node, and the caller's own objects once per step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.vlm.processors.copies import ForkedProcessors, Processor


class Branch:
    """The processors after their call for a step of a single row. They are called with all rows, as in
    `transformers.generate`. The other rows continue with the most likely allowed tokens, which any grammar accepts. The
    proof shows that these tokens do not change the scores of the followed row. `ids` int64 [B, L] are the rows;
    `logits` and `scores` float32 [V] are the row's before and after the processors, None before the first call. `error`
    is their exception, which an excluded draft token may cause."""

    def __init__(self, row: int, fork: ForkedProcessors, ids: Tensor, following: Tensor):
        self.row, self.fork, self.ids, self._following = row, fork, ids, following
        self.logits: Tensor | None = None
        self.scores: Tensor | None = None
        self.error: Exception | None = None

    @classmethod
    def start(cls, row: int, fork: ForkedProcessors, prompt: Tensor) -> Branch:
        """Return the branch of a row before its first step; `prompt` int64 [B, P]."""
        return cls(row, fork, prompt[:, :-1], prompt[:, -1])

    def child(self, token: Tensor, logits: Tensor) -> Branch:
        """Return the branch behind the row's next token, int64 [], with logits float32 [V]; this branch stays."""
        column = self._following.clone()
        column[self.row] = token
        new = Branch(self.row, self.fork.fork(), torch.cat([self.ids, column[:, None]], 1), column)
        new.logits = new.scores = logits
        try:
            scores = new.fork(new.ids, logits.expand(len(column), -1))
        except Exception as error:  # raised again if the token is accepted
            new.error = error
            return new
        new.scores, new._following = scores[self.row], scores.argmax(-1)
        return new

    def rules_out(self, token: Tensor) -> bool:
        return self.error is not None or bool((self.scores[token] == -torch.inf) & self.scores.isfinite().any())


class PendingBranch:
    """A node that cannot be accepted, so its processors were not called yet; `branch` calls them."""

    def __init__(self, parent: Branch | PendingBranch, token: Tensor, logits: Tensor):
        self.parent, self.token, self.logits = parent, token, logits

    def branch(self) -> Branch:
        parent = self.parent.branch() if isinstance(self.parent, PendingBranch) else self.parent
        return parent.child(self.token, self.logits)


_CLOSE = dict(rtol=1e-3, atol=1e-3, equal_nan=True)


class Lockstep:
    """Calls the original processors once per step with all rows, and compares their scores with those of the copies. So
    the objects end in the state that `transformers.generate` leaves. State that the proof missed causes an error
    instead of other output. A row that has ended gets the token `pad` and its last logits."""

    def __init__(self, processors: Sequence[Processor], prompt: Tensor, pad: int):
        self.processors, self.prompt, self.pad = processors, prompt, pad
        self.step = 0
        self._ahead: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(len(prompt))]
        self._noted = [0] * len(prompt)
        self._last: list[Tensor | None] = [None] * len(prompt)

    def note(self, row: int, logits: Tensor, scores: Tensor) -> None:
        """Store a row's next step: its logits and the scores of the copy, float32 [V] each."""
        self._ahead[row].append((logits, scores))
        self._noted[row] += 1

    def noted(self, row: int) -> int:
        return self._noted[row]

    def advance(self, tokens: Sequence[Sequence[int]], live: Sequence[bool]) -> None:
        """Call the processors for every step that all rows have reached; `tokens` are the generated ids per row."""
        while self._reached(tokens, live):
            has = [len(row) > self.step for row in tokens]
            steps = [ahead.pop(0) if ahead and there else None for ahead, there in zip(self._ahead, has, strict=True)]
            self._last = [last if new is None else new[0] for last, new in zip(self._last, steps, strict=True)]
            blank = next(last for last in self._last if last is not None)
            logits = torch.stack([torch.zeros_like(blank) if last is None else last for last in self._last])
            scores, ids = logits, self._ids(tokens)
            for processor in self.processors:
                scores = processor(ids, scores)
            for row, new in enumerate(steps):
                if new is not None and not torch.allclose(scores[row], new[1], **_CLOSE):
                    self._refuse(row)
            self.step += 1

    def _reached(self, tokens: Sequence[Sequence[int]], live: Sequence[bool]) -> bool:
        reached = [len(row) > self.step for row in tokens]
        return any(reached) and all(there or not alive for there, alive in zip(reached, live, strict=True))

    def _ids(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        rows = [list(row[: self.step]) + [self.pad] * (self.step - len(row)) for row in tokens]
        tail = torch.tensor(rows, dtype=self.prompt.dtype, device=self.prompt.device).reshape(len(rows), self.step)
        return torch.cat([self.prompt, tail], 1)

    def _refuse(self, row: int) -> None:
        names = ", ".join(type(processor).__name__ for processor in self.processors)
        raise ValueError(
            f"logits_processor: expected a copy to give the scores of {names}, got other scores in row {row} after "
            f"{self.step} generated tokens; decode with transformers.generate"
        )

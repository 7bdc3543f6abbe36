"""Logits processors along a row's path: a copy at every draft node, and the caller's own objects once per step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.vlm.processors.copies import ForkedProcessors, Processor


class Branch:
    """A copy of the processors at a step of a single row, after their call for that step.

    Processors are called with all rows, as in `transformers.generate`. The other rows start with their own prompts and
    continue with the most likely allowed tokens, which any grammar accepts. The proof shows that these tokens do not
    change the scores of the followed row.

    Attributes:
        row: the followed row.
        fork: the processors.
        ids: int64 [B, L], the rows.
        logits: float32 [V], the row's logits before the processors; None before the first call.
        scores: float32 [V], the row's logits after the processors; None before the first call.
        error: the exception that the processors raised in this call; an excluded draft token may cause it.
    """

    def __init__(self, row: int, fork: ForkedProcessors, ids: Tensor, following: Tensor):
        self.row, self.fork, self.ids, self._following = row, fork, ids, following
        self.logits: Tensor | None = None
        self.scores: Tensor | None = None
        self.error: Exception | None = None

    @classmethod
    def start(cls, row: int, fork: ForkedProcessors, prompt: Tensor) -> Branch:
        """Return the branch of a row before its first step.

        Args:
            row: the row to follow.
            fork: the processors before their first call.
            prompt: int64 [B, P].
        """
        return cls(row, fork, prompt[:, :-1], prompt[:, -1])

    def child(self, token: Tensor, logits: Tensor) -> Branch:
        """Return the branch at the next step; this branch does not change.

        Args:
            token: int64 [], the row's next token.
            logits: float32 [V], the row's logits after that token.
        """
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
        """Return whether the processors exclude `token`, int64 [], as the row's next token."""
        return self.error is not None or bool((self.scores[token] == -torch.inf) & self.scores.isfinite().any())


class PendingBranch:
    """A node that cannot be accepted, so its processors were not called yet; `branch` calls them."""

    def __init__(self, parent: Branch | PendingBranch, token: Tensor, logits: Tensor):
        self.parent, self.token, self.logits = parent, token, logits

    def branch(self) -> Branch:
        """Return the branch at the node."""
        parent = self.parent.branch() if isinstance(self.parent, PendingBranch) else self.parent
        return parent.child(self.token, self.logits)


_CLOSE = dict(rtol=1e-3, atol=1e-3, equal_nan=True)


class Lockstep:
    """Calls the original logits processors once per step with all rows, and compares their scores with those of the copies.

    After a request, the objects therefore have the same state as after `transformers.generate`. State that the proof missed
    causes an error instead of other output. A row that has ended gets the padding token and its last logits.

    Args:
        processors: the request's logits processors, not copies.
        prompt: int64 [B, P].
        pad: the token after the end of a row.
    """

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
        """Return the number of stored steps of a row."""
        return self._noted[row]

    def advance(self, tokens: Sequence[Sequence[int]], live: Sequence[bool]) -> None:
        """Call the processors for every step that all rows have reached.

        Args:
            tokens: per row, the generated ids.
            live: per row, whether it continues.

        Raises:
            ValueError: the scores differ from those of the copies.
        """
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

"""The caller's own processors, called as `transformers.generate` calls them once all rows have reached a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.vlm.stateful.copies import Processor

_CLOSE = dict(rtol=1e-3, atol=1e-3, equal_nan=True)


class Lockstep:
    """Calls a request's logits processors once a step with all rows, and compares their scores with those that were served.

    The objects are therefore left behind a request as `transformers.generate` leaves them, and state that the proof did not
    come upon cannot change the output in silence. A row that has ended is given the padding token and its last logits.

    Args:
        processors: the request's logits processors, none of which is a copy.
        prompt: int64 [B, P].
        pad: the token behind a row that has ended.
    """

    def __init__(self, processors: Sequence[Processor], prompt: Tensor, pad: int):
        self.processors, self.prompt, self.pad = processors, prompt, pad
        self.step = 0
        self._ahead: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(len(prompt))]
        self._noted = [0] * len(prompt)
        self._last: list[Tensor | None] = [None] * len(prompt)

    def note(self, row: int, logits: Tensor, scores: Tensor) -> None:
        """Remember a row's next step: its logits and the scores that were served, float32 [V] each."""
        self._ahead[row].append((logits, scores))
        self._noted[row] += 1

    def noted(self, row: int) -> int:
        """How many steps of a row were noted."""
        return self._noted[row]

    def advance(self, tokens: Sequence[Sequence[int]], live: Sequence[bool]) -> None:
        """Call the processors for every step that all rows have reached.

        Args:
            tokens: per row, the generated ids.
            live: per row, whether it goes on.

        Raises:
            ValueError: the scores are other ones than those that were served.
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
        names = ", ".join(type(one).__name__ for one in self.processors)
        raise ValueError(
            f"logits_processor: expected a copy to give the scores of {names}, got others in row {row} behind {self.step} "
            "generated tokens; decode with transformers.generate"
        )

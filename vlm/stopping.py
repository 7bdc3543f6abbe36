"""Where a run of accepted tokens ends: transformers' stopping criteria, judged on every accepted prefix."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria


class Stopping:
    """Cuts runs of tokens as `transformers.generate` would, one token at a time, have stopped.

    A stopped row is padded from there on; transformers does so only where an eos id is set, and else generates on until
    every row has stopped.
    """

    def __init__(self, criteria: StoppingCriteriaList, prompt: Tensor):
        self.prompt = prompt
        self.eos = {
            int(i) for c in criteria if isinstance(c, EosTokenCriteria) for i in c.eos_token_id.flatten().tolist()
        }
        lengths = [c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)]
        self.most = min(lengths) - prompt.shape[1] if lengths else None
        self.others = StoppingCriteriaList(
            [c for c in criteria if not isinstance(c, (EosTokenCriteria, MaxLengthCriteria))]
        )

    def cut(self, row: int, tokens: list[int], run: list[int]) -> tuple[list[int], bool]:
        """The part of `run` that row `row`, which holds the generated `tokens`, keeps, and whether it stops there."""
        room = len(run) + 1 if self.most is None else max(self.most - len(tokens), 1)
        end, stop = min(room, len(run)), room <= len(run)
        for i, token in enumerate(run[:end]):
            if token in self.eos or (self.others and self._others_stop(row, tokens + run[: i + 1])):
                return run[: i + 1], True
        return run[:end], stop

    def _others_stop(self, row: int, tokens: list[int]) -> bool:
        tail = torch.tensor([tokens], device=self.prompt.device)
        return bool(self.others(torch.cat([self.prompt[row : row + 1], tail], 1), None).any())

"""What a drafter that puts another law on record than it drew from would do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmspec.core.drafting import growth
from mmspec.core.round.draft import Law


def evenly_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are drawn as ever, and on record as drawn evenly."""

    def law(kind: str, row: Tensor | None = None, scores: Tensor | None = None, **others: object) -> Law:
        return Law(kind, row=row, scores=None if scores is None else torch.zeros_like(scores), **others)

    monkeypatch.setattr(growth, "Law", law)


def best_on_record_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains take the best token and have the softmax on record, as transformers' with an assistant of Gemma 4."""
    monkeypatch.setattr(growth, "draw", lambda scores, uniform: scores.argmax(-1))

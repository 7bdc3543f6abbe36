"""What a call returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmspec.core.stats import Stats
from mmspec.vlm.target import TextTarget


@dataclass
class Generated(GenerateDecoderOnlyOutput):
    """transformers' own output class with the speculative statistics beside it.

    sequences: int64 [B, L], laid out as `transformers.generate` lays it out.
    read: tokens of the prompt that passed through the model; in a conversation those that were new.
    stats: the request's Stats.   errors: per failed row, one sentence (None when all went well).
    """

    read: int | None = None
    stats: Stats | None = None
    errors: dict[int, str] | None = None


class RowsFailed(ValueError):
    """Some rows met NaN or Inf logits, or had no token left to draw. `partial` is the Generated result: finished rows
    whole, failed rows cut short."""

    def __init__(self, partial: Generated):
        super().__init__("; ".join(partial.errors.values()) + "; other rows are complete in the error's `partial`")
        self.partial = partial


def collect(target: TextTarget, stats: Stats, *, scores: bool = False, logits: bool = False) -> Generated:
    """The result of a finished request."""
    longest = max(target.emitted)
    tail = [t + [target.pad] * (longest - len(t)) for t in target.tokens]
    tail = torch.tensor(tail, dtype=target.prompt.dtype, device=target.device).reshape(target.batch, longest)
    return Generated(
        sequences=torch.cat([target.prompt, tail], 1),
        scores=_steps(target.scores, longest) if scores else None,
        logits=_steps(target.logits, longest) if logits else None,
        read=target.read,
        stats=stats,
        errors=target.errors or None,
    )


def _steps(rows: list[list[Tensor]], longest: int) -> tuple[Tensor, ...]:
    """Per generated position [B, V]; a row that stopped earlier repeats its last entry, one that has none is NaN."""
    blank = [torch.full_like(row[0], torch.nan) for row in rows if row][:1]
    rows = [row or blank for row in rows]
    return tuple(torch.stack([row[min(i, len(row) - 1)] for row in rows]) for i in range(longest))

"""What a call returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache
from transformers.generation.utils import GenerateDecoderOnlyOutput

from mmspec.core.draft import Draft, Law
from mmspec.core.loop import Decoding
from mmspec.core.stats import Stats
from mmspec.core.tree import line
from mmspec.vlm.returned_cache import fill
from mmspec.vlm.target import TextTarget

_WIDEST = 64  # tokens of a pass over padding, whose logits then need little more memory than those that are kept


@dataclass
class Generated(GenerateDecoderOnlyOutput):
    """transformers' own output class with the speculative statistics beside it.

    sequences: int64 [B, L], laid out as `transformers.generate` lays it out.
    past_key_values: with `return_dict_in_generate`, transformers' own cache of the sequences without their last token, with
        which the class's `generate` goes on; in a conversation the conversation; None where a row failed.
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


def collect(
    target: TextTarget, stats: Stats, *, scores: bool = False, logits: bool = False, cache: Cache | None = None
) -> Generated:
    """The result of a finished request."""
    longest = max(target.emitted)
    tail = [t + [target.pad] * (longest - len(t)) for t in target.tokens]
    tail = torch.tensor(tail, dtype=target.prompt.dtype, device=target.device).reshape(target.batch, longest)
    return Generated(
        sequences=torch.cat([target.prompt, tail], 1),
        scores=_steps(target.scores, longest) if scores else None,
        logits=_steps(target.logits, longest) if logits else None,
        past_key_values=cache,
        read=target.read,
        stats=stats,
        errors=target.errors or None,
    )


def _steps(rows: list[list[Tensor]], longest: int) -> tuple[Tensor, ...]:
    """Per generated position [B, V]; NaN behind the end of a row that failed."""
    blank = next((torch.full_like(row[0], torch.nan) for row in rows if row), None)
    return tuple(torch.stack([row[i] if i < len(row) else blank for row in rows]) for i in range(longest))


def complete(decoding: Decoding, cache: Cache | None) -> Cache | None:
    """Gives a finished request what transformers adds behind rows that ended early, and fills `cache`; None where a row
    failed."""
    target, stats = decoding.target, decoding.stats
    if target.keep_scores or cache is not None:
        with stats.time("target"):
            stats.target_passes += _read_padding(target)
    if cache is None or target.errors:
        return None
    fill(cache, target)
    return cache


@torch.no_grad()
def _read_padding(target: TextTarget) -> int:
    """Lets a finished request read the padding behind rows that ended early, as far as the longest row was read.

    Scores, logits and keys of these rows are then those of transformers. The padding is known, so that a pass reads many
    tokens at once. Rows that failed are left as they are.

    Args:
        target: the request; one that `goes_on`, see `TextTarget`.

    Returns:
        The number of passes, 0 where all rows are of one length.
    """
    longest, passes = max(target.emitted), 0
    _forget_cut_rows(target)
    while count := min(max(_lacks(target, longest)), _WIDEST):
        rows = [tokens[-1:] or [target.pad] for tokens in target.tokens]
        value = torch.tensor([row + [target.pad] * (count - 1) for row in rows], device=target.device)
        draft = Draft(value, line(count, target.device), Law("none"))
        target.read_on(draft, [min(lack, count) for lack in _lacks(target, longest)])
        passes += 1
    return passes


def _forget_cut_rows(target: TextTarget) -> None:
    """Takes tokens out of the cache that a row had read when a stopping criterion ended it further back."""
    held, start = target.cache.lengths, target.prompt.shape[1]
    wanted = [min(n, start + max(count - 1, 0)) for n, count in zip(held, target.emitted, strict=True)]
    if wanted != held:
        back = torch.tensor(held, device=target.device) - torch.tensor(wanted, device=target.device)
        target.next_position = target.next_position - back
        target.cache.cut(wanted)


def _lacks(target: TextTarget, longest: int) -> list[int]:
    """Per row, the tokens of padding that it has not read."""
    return [0 if row in target.errors else longest - count for row, count in enumerate(target.emitted)]

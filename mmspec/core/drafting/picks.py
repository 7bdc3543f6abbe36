"""Picks for a level, as values of the target's vocabulary. A drafter with a reduced vocabulary ranks only its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.keys import Keys, Purpose
from mmspec.core.round.sampling import draw_several


def values_of(column: Tensor, ids: Tensor | None) -> Tensor:
    """Return the values behind columns int64 [...] of a distribution; `ids` is int64 [k], None where a column is a
    value."""
    return column if ids is None else ids[column]


def best_values(scores: Tensor, count: int, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and values, [..., count] each, the best first; -Inf where a row has fewer values.
    `scores` float32 [..., k] are log-weights; `ids` as in `values_of`."""
    score, column = _likeliest(_widened(scores.log_softmax(-1), count), count)
    return score, values_of(_known(column, scores), ids)


def pick_siblings(
    drawn: str, scores: Tensor, count: int, keys: Keys, level: int, ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return scores and values of `count` children of each node of a level, [B, m, count] each; scores that are not
    finite belong to no value. `scores` float32 [B, m, k] are log-weights; `ids` as in `values_of`. `drawn`: the
    likeliest values, the best first ("deterministic"), draws in their order by Gumbel top-k, or independent draws.
    `level` separates the draws of a round."""
    score, column = _PICKS[drawn](_widened(scores, count), count, keys, level)
    return score, values_of(_known(column, scores), ids)


def pick_apart(scores: Tensor, count: int, keys: Keys, level: int) -> tuple[Tensor, Tensor]:
    """Return scores and columns, [B, m, count] each, of draws without replacement; otherwise as `pick_siblings`."""
    score, column = _without_replacement(_widened(scores, count), count, keys, level)
    return score, _known(column, scores)


def _widened(scores: Tensor, count: int) -> Tensor:
    lacking = count - scores.shape[-1]
    return scores if lacking <= 0 else pad(scores, (0, lacking), value=-torch.inf)


def _known(column: Tensor, scores: Tensor) -> Tensor:
    """Replace columns of `_widened`: no value is drafted there, but a drafter embeds it all the same."""
    last = scores.shape[-1] - 1
    return column.clamp(max=last) if column.shape[-1] > last + 1 else column


def _likeliest(scores: Tensor, count: int, *_: object) -> tuple[Tensor, Tensor]:
    return scores.topk(count, -1)


def _without_replacement(scores: Tensor, count: int, keys: Keys, level: int) -> tuple[Tensor, Tensor]:
    return keys.gumbel(Purpose.DRAFT, *scores.shape[1:], step=level).add_(scores).topk(count, -1)


def _with_replacement(scores: Tensor, count: int, keys: Keys, level: int) -> tuple[Tensor, Tensor]:
    column = draw_several(scores, keys.uniform(Purpose.DRAFT, scores.shape[1], count, step=level))
    return scores.gather(-1, column), column


_PICKS = {
    "deterministic": _likeliest,
    "without_replacement": _without_replacement,
    "with_replacement": _with_replacement,
}

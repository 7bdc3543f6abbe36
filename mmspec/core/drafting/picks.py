"""The picks for a level of a draft: top values or draws, as values of the target's vocabulary.

A drafter with a reduced vocabulary scores, ranks and draws its own values only, so a pick costs no more than its
vocabulary is wide.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.keys import Keys, Purpose
from mmspec.core.sampling import draw_several


def values_of(column: Tensor, ids: Tensor | None) -> Tensor:
    """Return the values behind columns int64 [...] of a distribution; `ids`, int64 [k], is None where a column is a value."""
    return column if ids is None else ids[column]


def best_values(scores: Tensor, count: int, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the `count` likeliest values of each row, the best first.

    Args:
        scores: float32 [..., k], log-weights.
        count: The number of values.
        ids: int64 [k], see `values_of`.

    Returns:
        Log-probabilities and values, [..., count] each; minus infinity where a row has fewer values.
    """
    score, column = _likeliest(_widened(scores.log_softmax(-1), count), count)
    return score, values_of(_known(column, scores), ids)


def pick_siblings(
    drawn: str, scores: Tensor, count: int, keys: Keys, level: int, ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return `count` children of each node of a level.

    Args:
        drawn: "deterministic" for the likeliest values, the best first; "without_replacement" for draws in their order
            (Gumbel top-k); "with_replacement" for independent draws.
        scores: float32 [B, m, k], log-weights.
        count: The number of children.
        keys: The random numbers of the request.
        level: The depth of the children, which separates the draws of a round.
        ids: int64 [k], see `values_of`.

    Returns:
        Scores, of which those that are not finite belong to no value, and values, [B, m, count] each.
    """
    score, column = _PICKS[drawn](_widened(scores, count), count, keys, level)
    return score, values_of(_known(column, scores), ids)


def pick_apart(scores: Tensor, count: int, keys: Keys, level: int) -> tuple[Tensor, Tensor]:
    """Return scores and columns, [B, m, count] each, of draws without replacement; otherwise as `pick_siblings`."""
    score, column = _without_replacement(_widened(scores, count), count, keys, level)
    return score, _known(column, scores)


def _widened(scores: Tensor, count: int) -> Tensor:
    """Pad scores with minus infinity to at least `count` columns."""
    lacking = count - scores.shape[-1]
    return scores if lacking <= 0 else pad(scores, (0, lacking), value=-torch.inf)


def _known(column: Tensor, scores: Tensor) -> Tensor:
    """Replace columns that `_widened` added; no value is drafted there, but a drafter embeds it all the same."""
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

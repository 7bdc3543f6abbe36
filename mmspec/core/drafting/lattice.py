from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from mmspec.core.drafting.guided import DraftGuide, LevelScores, LevelwiseState
from mmspec.core.drafting.picks import values_of
from mmspec.io.validation import Range, Share, Size, check_fields

# the known probabilities after a row's text and a path behind it, None where no n-gram at its end is known
Prior = Callable[[int, Sequence[int]], Mapping[int, float] | None]


@dataclass(frozen=True, slots=True)
class LatticeSearch:
    """The settings of a search, see `best_path`.

    Args:
        beam: The paths that are kept at a position. The paper keeps 3. More paths may trade the first tokens of a draft for
            later positions, which count only behind accepted first tokens.
        mass: The probability of a position's candidates: the likeliest tokens, as few as have it together.
        most: The most candidates of a position.
        share: The weight of the drafter's log-probabilities; the n-grams have the rest. 1 ignores the n-grams.
        trust: The weight of the n-grams in the mixture with the drafter's distribution that scores a candidate.
    """

    beam: Size = 1
    mass: Annotated[float, Range(above=0, most=1)] = 0.8
    most: Size = 15
    share: Share = 0.5
    trust: Annotated[float, Range(0, below=1)] = 0.9

    __post_init__ = check_fields


@torch.no_grad()
def best_path(
    state: LevelwiseState,
    target: object,
    search: LatticeSearch,
    prior: Prior,
    rooms: Sequence[int],
    guide: DraftGuide | None = None,
) -> Tensor:
    """Return the tokens of the best path of `rooms[b]` tokens that a beam finds in row b, int64 [B, longest], 0 behind
    them. Its score sums `share` * log q(x) + (1 - `share`) * log g(x), where g mixes the n-grams and q, and is q
    without a known n-gram. An argmax of a search has no distribution, so the path is deterministic, and only rules for
    such drafts verify it."""
    scorer = LevelScores(state, target, guide, sampled=False)
    out, score = state.root[:, None], torch.zeros(target.batch, 1, device=target.device)
    paths = torch.empty(target.batch, 1, 0, dtype=torch.long, device=target.device)
    depth, room = max(rooms), torch.tensor(rooms, device=target.device)[:, None]
    best_of_row = torch.zeros(target.batch, depth, dtype=torch.long, device=target.device)
    for level in range(1, depth + 1):
        log, token = _candidates(scorer.scores(out, level), search, state.ids)
        added = search.share * log
        if search.share < 1:
            added = added + (1 - search.share) * _mixed(log, token, paths, prior, search.trust)
        total = (score[..., None] + added).where(log.isfinite(), -torch.inf).flatten(1)
        score, best = total.topk(min(search.beam, total.shape[1]), -1)
        source, token = best // log.shape[-1], token.flatten(1).gather(1, best)
        paths = torch.cat([paths.gather(1, source[..., None].expand(-1, -1, level - 1)), token[..., None]], -1)
        best_of_row[:, :level] = torch.where(room == level, paths[:, 0], best_of_row[:, :level])
        if level < depth:
            hidden = out.expand(-1, total.shape[1] // log.shape[-1], -1)
            hidden = hidden.gather(1, source[..., None].expand(-1, -1, hidden.shape[-1]))
            out = state.expand(token, hidden, None, 0, level)
            scorer.descend(token, source)
    return best_of_row


def _candidates(scores: Tensor, search: LatticeSearch, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and tokens of a position's candidates, [B, n, K] each, -Inf for none. `scores` float32
    [B, n, V or k] are log-weights behind each path; `search` has the limits, `ids` as in `values_of`."""
    log, column = scores.log_softmax(-1).topk(min(search.most, scores.shape[-1]), -1)
    share = log.exp()
    before = share.cumsum(-1) - share
    before[..., 0] = 0  # the likeliest token is always a candidate
    return log.where(before < search.mass, -torch.inf), values_of(column, ids)


def _mixed(log: Tensor, token: Tensor, paths: Tensor, prior: Prior, trust: float) -> Tensor:
    """Return the logarithms of the mixtures, float32 [B, n, K], for candidates behind `paths` int64 [B, n, L]."""
    known, weight = [], []
    for row, (ends, tokens) in enumerate(zip(paths.tolist(), token.tolist(), strict=True)):
        laws = [prior(row, path) for path in ends]
        known.append(
            [
                [0.0 if law is None else law.get(token, 0.0) for token in own]
                for law, own in zip(laws, tokens, strict=True)
            ]
        )
        weight.append([[0.0 if law is None else trust] for law in laws])
    weight = torch.tensor(weight, device=log.device)
    return (weight * torch.tensor(known, device=log.device) + (1 - weight) * log.exp()).log()

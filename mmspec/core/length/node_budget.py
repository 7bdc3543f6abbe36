from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from mmspec.core.length.controls import outcomes
from mmspec.core.round.draft import Draft, Verdict
from mmspec.io.validation import Size, check_fields
from mmspec.methods import method

_PRIOR, _SHARE = 16.0, 0.7  # the weight, in verified values, of the acceptance that a request begins with
_POWERS = (0.1, 2.0)  # the limits of the calibration


@method(
    "batch",
    domain=("vlm", "image"),
    kind="controller",
    title="TETRIS (before the draw)",
    exact=True,
    order=4,
    about="the rows of a batch share a budget of drafted values",
    paper="TETRIS: Optimal Draft Token Selection for Batch Speculative Decoding",
)
@dataclass(frozen=True, slots=True)
class BatchBudget:
    """Limits the drafted values of a round over all rows of a batch, and gives them to the rows that will use them best.

    A value's chance is the probability of the values drawn before it times the expected acceptance of the next
    distribution. Each level takes the rows whose chance is among the best of all values that are still to come, of
    which those below the next level are forecast. Exact: TETRIS selects drawn values, which changes the distribution of
    sampled text; here each decision precedes the draw. Neighbours change the words of a seed, not their distribution.

    Args:
        nodes: The most drafted values of a round, over all rows.
        longest: The most values of a row's draft.
    """

    nodes: Size = 16
    longest: Size = 8

    __post_init__ = check_fields

    def begin(self) -> BatchGrowth:
        """Return the decisions for a draft outside a request, which all rows can use in full."""
        return BatchGrowth(self, _SHARE, 1.0, greedy=False, rooms=None)

    def for_request(self, target: Any) -> RequestBudget:
        return RequestBudget(self, target)


class RequestBudget:
    """The budget of a request. `hits` and `tests` include those of the prior; `expected` sums expected acceptances of
    the latter."""

    def __init__(self, control: BatchBudget, target: Any):
        self.control, self.target, self.longest = control, target, control.longest
        self.hits, self.tests, self.expected = _PRIOR * _SHARE, _PRIOR, _PRIOR * _SHARE
        self.growth: BatchGrowth | None = None

    @property
    def share(self) -> float:
        return self.hits / self.tests

    @property
    def power(self) -> float:
        """The power that turns the drafter's probabilities into acceptances, on average."""
        least, most = _POWERS
        return min(max(log(min(self.share, 0.99)) / log(min(self.expected / self.tests, 0.99)), least), most)

    def begin(self) -> BatchGrowth:
        rooms = torch.tensor(self.target.rooms(self.longest), device=self.target.device)
        self.growth = BatchGrowth(self.control, self.share, self.power, self.target.greedy, rooms)
        return self.growth

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Count the verified values of a round: all accepted values, and the first rejected value of each row."""
        growth = self.growth
        if growth is None or not growth.expected:
            return
        accepted, drawn = outcomes(draft, verdict)
        tested, expected = drawn.minimum(accepted + 1), torch.stack(growth.expected, 1)
        read = torch.arange(expected.shape[1], device=expected.device) < tested[:, None]
        self.hits += float(accepted.sum())
        self.tests += float(tested.sum())
        self.expected += float(expected.where(read, 0.0).sum())


class BatchGrowth:
    """The decisions of a draft: `reach` float32 [B], the calibrated probability of the values drawn so far; rows
    `going` bool [B]; `left` int64 [] of the budget; `expected` float32 [B] per value, from before its draw."""

    def __init__(self, control: BatchBudget, share: float, power: float, greedy: bool, rooms: Tensor | None):
        self.control, self.power, self.greedy, self.rooms = control, power, greedy, rooms
        self.decay = min(max(share, 0.01), 0.99)
        self.reach: Tensor | None = None
        self.going: Tensor | None = None
        self.left: Tensor | None = None
        self.expected: list[Tensor] = []

    def measure(self, law: Tensor) -> Tensor:
        """Return the expected acceptance of a value drawn from `law` [B, V] where the target agrees, float32 [B]."""
        return law.amax(-1) if self.greedy else law.square().sum(-1)

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        levels, device = self.control.longest - step, confidence.device
        if levels < 1:
            return torch.zeros_like(confidence, dtype=torch.bool)
        if self.reach is None:
            self.reach, self.left = torch.ones_like(confidence), torch.tensor(self.control.nodes, device=device)
            self.rooms = torch.full_like(confidence, self.control.longest) if self.rooms is None else self.rooms
            self.going = self.rooms > 0
        self.expected.append(confidence)
        ahead = torch.arange(levels, device=device)
        chance = (self.reach * confidence.clamp_min(0) ** self.power)[:, None] * self.decay**ahead
        possible = self.going[:, None] & (step + ahead < self.rooms[:, None])
        ranked = chance.where(possible, -1.0).T.flatten().argsort(descending=True, stable=True)  # shallow values first
        rank = torch.empty_like(ranked).scatter_(0, ranked, torch.arange(len(ranked), device=device))
        self.going = possible[:, 0] & (rank[: len(confidence)] < self.left)
        self.left = self.left - self.going.sum()
        return self.going

    def drew(self, chance: Tensor) -> None:
        self.reach = self.reach * chance.clamp_min(0) ** self.power

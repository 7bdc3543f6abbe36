"""Cool-SD: every ratio p / q is raised by a factor that decreases along the block."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.round.draft import Draft, Evidence
from mmspec.core.round.rules import Weights
from mmspec.core.round.rules.base import at_node
from mmspec.core.round.rules.relaxed import RelaxedRule
from mmspec.core.round.rules.siblings import gather_children
from mmspec.core.round.sampling import TINY
from mmspec.imagegen.rules.relaxed import Siblings, siblingwise
from mmspec.io.validation import number, whole
from mmspec.methods import method


@method(
    "coolsd",
    domain=("image", "video"),
    kind="rule",
    title="Cool-SD",
    exact=False,
    about="ratios are raised by a factor that cools down along the draft",
    paper="Annealed Relaxation of Speculative Decoding for Faster Autoregressive Image Generation",
    order=30,
    tiny={"delta": 1.5},
    knob="delta",
    knob_values=(1.1, 1.25, 1.5, 2, 3),
    knob_shown=1.5,
    aliases=("cool",),
)
class CoolSD(RelaxedRule):
    """Accepts a drafted value at depth i, from 0, with probability min(1, w_i p / q), w_i = delta exp(-decay i - mu).

    Relaxed. "Annealed Relaxation of Speculative Decoding for Faster Autoregressive Image Generation" (no public code).
    It relaxes early values of a block more than later values and needs no table of neighbours. After a rejection the
    value is drawn from [p - q f]+ with f the acceptance probability, for a single draft the distribution nearest to the
    target (see `RelaxedRule`).

    delta 1 at floor 1 is the exact rule, bit for bit, whatever the decay. At other floors delta 1 is exact with decay 0
    (mu 0 or None).

    Args:
        delta: The factor at the start, 1.1 to 2 in the paper.
        decay: How fast the factor falls from value to value, 0.7 in the paper.
        mu: The constant of the exponent. None makes the factors of the first `block` depths, floor included, average
            delta. The paper leaves this constant open, so this is our reading. A faster decay then moves the relaxation
            to the front and does not add to it.
        block: The number of depths that `mu` averages over.
        floor: The least factor. 1 relaxes only. Factors below 1 just shorten the path: a step that accepts less often
            than the exact rule is still exact. 0 is the formula as printed.

    Raises:
        ValueError: A setting is out of range, or delta is below the floor with mu None, where no mean exists.
    """

    name = "coolsd (relaxed)"

    def __init__(
        self, delta: float = 1.1, decay: float = 0.7, mu: float | None = None, block: int = 5, floor: float = 1.0
    ):
        for name, value in (("delta", delta), ("decay", decay), ("mu", 0 if mu is None else mu), ("floor", floor)):
            number(name, value)
        whole("block", block)
        if not 0 < delta < math.inf or not 0 <= decay < math.inf or not math.isfinite(mu or 0.0):
            raise ValueError(
                f"expected delta above 0, decay of at least 0 and mu, all finite, got {delta}, {decay}, {mu}"
            )
        if block < 1 or not 0 <= floor <= 1:
            raise ValueError(f"expected a block of at least 1 and a floor in 0 to 1, got {block} and {floor}")
        if mu is None and delta < floor:
            raise ValueError(
                f"delta: expected at least the floor of {floor}, which no factor falls below, got {delta}; "
                "raise it or lower the floor"
            )
        self.delta, self.decay, self.mu, self.floor = delta, decay, mu, floor
        self.first = _first_factor(delta, decay, block, floor) if mu is None else delta * math.exp(-mu)  # w_0

    def factor(self, depth: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the factor w of nodes at `depth` int64, counted from 1; the root's factor does not count."""
        step = (depth - 1).clamp_min(0).to(dtype)
        return ((step * -self.decay).exp() * self.first).clamp_min(self.floor)

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        factor = self.factor(draft.tree.depth, weights.threshold.dtype)
        if self.floor == 1:
            return (weights.threshold * factor).clamp_max(1)
        factor = pad(factor, (0, 1))  # as in `siblingwise`, for missing children
        ratio, weights.p = siblingwise(
            weights, draft, live, partial(_cooled_ratio, factor), partial(_cooled_residual, factor)
        )
        return ratio

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        if self.floor == 1:
            return super().residual(evidence, draft, weights, node)
        return at_node(weights.p, node)


def _first_factor(delta: float, decay: float, block: int, floor: float) -> float:
    """Return w_0 for which max(floor, w_0 exp(-decay i)) averages delta over i < block; delta is at least the floor."""
    for above in range(block, 0, -1):  # the number of factors above the floor
        cooled = [math.exp(-decay * i) for i in range(above)]
        first = (block * delta - (block - above) * floor) / sum(cooled)
        if first * cooled[-1] > floor:
            return first
    return delta  # all factors are at the floor, up to rounding


def _cooled_ratio(factor: Tensor, siblings: Siblings) -> Tensor:
    return (
        siblings.of(siblings.law) / siblings.own_share().clamp_min(TINY) * gather_children(factor, siblings.child)
    ).clamp_max(1)


def _cooled_residual(factor: Tensor, siblings: Siblings) -> Tensor:
    """Return [law - share f]+ normalised, where share f is the lesser of the share and w law."""
    share = siblings.share
    if share is None:
        share = torch.zeros_like(siblings.law).scatter_(2, siblings.token[..., None], 1.0)
    accepted = (siblings.law * gather_children(factor, siblings.child)[..., None]).minimum(share)
    rest = (siblings.law - accepted).clamp_min_(0)
    total = rest.sum(-1, keepdim=True)
    return rest.div_(total).where(total > 0, siblings.p)

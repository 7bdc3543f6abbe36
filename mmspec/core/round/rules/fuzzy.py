from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.round.draft import Draft, expand_tree
from mmspec.core.round.rules.base import Weights, law_row
from mmspec.core.round.rules.relaxed import RelaxedRule, accepting
from mmspec.core.round.rules.siblings import sibling_table
from mmspec.io.validation import number
from mmspec.kernels.law import dense
from mmspec.methods import method


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Return nats, 0 to log 2, [...] for float [..., V]."""
    middle = (p + q) / 2
    return (kullback_leibler(p, middle) + kullback_leibler(q, middle)) / 2


def kullback_leibler(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p || q) in nats; infinite where q lacks a value of p."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1).clamp_min(0)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Return the total variation, float [...] from 0 to 1, of distributions [..., V]."""
    return (p - q).abs().sum(-1) / 2


def _from_the_drafter(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(q || p); KL(p || q) is infinite wherever a drafter excludes a token, such as the placeholders of
    pictures."""
    return kullback_leibler(q, p)


_DIVERGENCES = {"js": jensen_shannon, "kl": _from_the_drafter, "tv": total_variation}


@method(
    "fuzzy",
    domain="vlm",
    kind="rule",
    title="fuzzy",
    exact=False,
    about="tokens are accepted where drafter and target nearly agree",
    paper="Fuzzy Speculative Decoding for a Tunable Accuracy-Runtime Tradeoff",
    order=13,
    tiny={"threshold": 0.1},
)
class Fuzzy(RelaxedRule):
    """Accepts a drafted token whose distributions q and p diverge by at most a threshold, else by the exact test. Relaxed.

    "Fuzzy Speculative Decoding for a Tunable Accuracy-Runtime Tradeoff". A drafted position has the distribution q where
    D(p, q) <= threshold and p elsewhere. The total variation paid there is that of p and q, and the statistics hold its sum.
    Of siblings the first is accepted. Both distributions are those after temperature, top-k and top-p. Greedy requests use
    target-match, since their distributions are one-hot. With "kl" it resembles the training-free judge of 2601.04766, which
    reads KL(p || q).

    Args:
        threshold: The largest divergence at which a token is accepted unseen; below 0 the rule is exact.
        divergence: The Jensen-Shannon divergence "js", KL(q || p) "kl" (both in nats) or the total variation "tv".

    Raises:
        ValueError: The threshold is no number, or the divergence is unknown.
    """

    name = "fuzzy (relaxed)"
    proven_for = frozenset({("categorical", "without_replacement")})

    def __init__(self, threshold: float = 0.05, divergence: Literal["js", "kl", "tv"] = "js"):
        self.threshold = number("threshold", threshold, infinite=True)
        if divergence not in _DIVERGENCES:
            raise ValueError(f"divergence: expected {', '.join(_DIVERGENCES)}, got {divergence!r}; choose one of them")
        self.divergence = divergence

    def relax(self, weights: Weights, draft: Draft, live: Tensor | None) -> Tensor:
        if self.threshold < 0:
            return weights.threshold
        parent = expand_tree(draft.tree.parent, draft.batch)
        close = self.divergence_at_parents(weights, draft) <= self.threshold
        weights.paid = torch.where(close, _at_parents(weights, draft, total_variation), 0.0).gather(1, parent)
        return accepting(weights, draft, close.gather(1, parent), live)

    def apart(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the divergence float [...] of distributions p and q, float [..., V]."""
        return _DIVERGENCES[self.divergence](p, q)

    def divergence_at_parents(self, weights: Weights, draft: Draft) -> Tensor:
        """The divergence of p and q at the nodes with children, float [B, N]; infinite at other nodes."""
        return _at_parents(weights, draft, self.apart)


def _at_parents(weights: Weights, draft: Draft, apart: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    node = sibling_table(draft.tree).node
    p = dense(weights.p.index_select(1, node))
    q = dense(weights.q.index_select(1, law_row(draft)[node]))
    result = torch.full_like(weights.threshold, torch.inf)
    return result.index_copy_(1, node, apart(p, q).to(result.dtype))

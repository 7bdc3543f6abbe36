"""Two rules for chains of tokens: one exact, one relaxed."""

from torch import Tensor

from mmspec.core import Draft, Evidence, Rule, Weights
from mmspec.core.round.rules import TokenWise
from mmspec.core.round.rules.base import at_node, is_followed, keep_live, law_row
from mmspec.core.round.rules.laws import laws_of
from mmspec.kernels.log_law import TINY
from mmspec.methods import method


@method(
    "cautious",
    domain=("vlm", "image"),
    kind="rule",
    title="cautious",
    exact=True,
    about="token-wise verification that rejects a share of what it could accept",
)
class Cautious(Rule):
    """Accepts a token with probability share * min(1, p / q). Exact: after a rejection it draws from p - share * min(p, q).

    Args:
        share: From 0, which accepts nothing, to 1, which is token-wise verification.
    """

    name = "cautious"
    exact = True
    proven_for = frozenset({("categorical", "without_replacement")})
    chains_only = True

    def __init__(self, share: float = 0.9):
        if not 0 <= share <= 1:
            raise ValueError(f"share: expected a number from 0 to 1, got {share}; use 1 for token-wise verification")
        self.share = share

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        laws = laws_of(evidence, draft)  # both distributions, and both at the drafted tokens
        threshold = self.share * (laws.child_p / laws.child_q.clamp_min(TINY)).clamp_max(1)  # [B, N]
        tested = is_followed(threshold, laws.live)  # 1 where a drafted token follows: only there can a test fail
        return Weights(keep_live(threshold, laws.live), "descend", laws.p, laws.q, beta=tested)

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        p = at_node(weights.p, node)  # [B, V]
        if weights.q is None or draft.tree.nodes == 1:
            return p
        q = at_node(weights.q, law_row(draft)[node])
        return p - self.share * at_node(weights.beta, node)[:, None] * p.minimum(q)


@method(
    "eager",
    domain=("vlm", "image"),
    kind="rule",
    title="eager",
    exact=False,
    about="token-wise verification with acceptance probabilities raised by a factor",
)
class Eager(TokenWise):
    """Accepts a token with probability min(1, factor * p / q). Relaxed: tokens that the drafter prefers come out too often.

    Args:
        factor: From 1, which is token-wise verification bit for bit.
    """

    name = "eager (relaxed)"
    exact = False

    def __init__(self, factor: float = 1.5):
        if not factor >= 1:
            raise ValueError(f"factor: expected at least 1, got {factor}; use 1 for token-wise verification")
        self.factor = factor

    def weigh(self, evidence: Evidence, draft: Draft) -> Weights:
        weights = super().weigh(evidence, draft)
        weights.threshold = (self.factor * weights.threshold).clamp_max(1)
        return weights

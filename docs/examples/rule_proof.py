"""The proof of both rules: the exact rule against enumeration, a wrong variant that fails, and the relaxed rule's distance."""

from rule import Cautious, Eager
from torch import Tensor

from mmspec.certify.enumeration import LAWS, contrasted_tables, inexactness
from mmspec.core import Draft, Evidence, Rule, Weights, chain
from mmspec.core.round.rules import TokenWise


class Forgetful(Cautious):
    """Wrong: it ignores its share after a rejection and draws from [p - q]+."""

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return TokenWise().residual(evidence, draft, TokenWise().weigh(evidence, draft), node)


def worst(rule: Rule) -> float:
    """The largest total variation from the target, over distributions of several kinds and chains of 0 to 3 tokens."""
    return max(
        inexactness(rule, chain(length), *contrasted_tables(kind, 3, length, seed=1))
        for kind in LAWS
        for length in range(4)
    )


assert all(worst(Cautious(share)) < 1e-12 for share in (0.0, 0.5, 0.9, 1.0))
assert worst(Eager(1.0)) < 1e-12
assert worst(Forgetful(0.9)) > 1e-3
print(f"cautious {worst(Cautious(0.9)):.0e}, forgetful {worst(Forgetful(0.9)):.2f}, eager {worst(Eager(1.5)):.2f}")

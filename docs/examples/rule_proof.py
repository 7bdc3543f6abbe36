"""What belongs to a rule: an exact one against enumeration, a wrong one that fails it, a relaxed one with its distance."""

from rule import Cautious, Eager
from torch import Tensor

from mmspec.certify.enumeration import LAWS, contrasted_tables, inexactness
from mmspec.core import Draft, Evidence, Rule, Weights, chain
from mmspec.core.rules import TokenWise


class Forgetful(Cautious):
    """Forgets its own share: what follows a failure is drawn from [p - q]+."""

    def residual(self, evidence: Evidence, draft: Draft, weights: Weights, node: Tensor) -> Tensor:
        return TokenWise().residual(evidence, draft, TokenWise().weigh(evidence, draft), node)


def worst(rule: Rule) -> float:
    """Total variation from the target, the worst over laws that differ in every way that matters and chains of 0 to 3."""
    return max(
        inexactness(rule, chain(length), *contrasted_tables(kind, 3, length, seed=1))
        for kind in LAWS
        for length in range(4)
    )


assert all(worst(Cautious(share)) < 1e-12 for share in (0.0, 0.5, 0.9, 1.0))
assert worst(Eager(1.0)) < 1e-12
assert worst(Forgetful(0.9)) > 1e-3
print(f"cautious {worst(Cautious(0.9)):.0e}, forgetful {worst(Forgetful(0.9)):.2f}, eager {worst(Eager(1.5)):.2f}")

"""A length controller: a draft ends where the drafter no longer expects all of it to be accepted."""

from dataclasses import dataclass

from torch import Tensor

from mmspec.methods import method


@method(
    "joint",
    domain=("vlm", "image"),
    kind="controller",
    title="joint confidence",
    exact=True,
    about="a draft ends where the product of the drafter's largest probabilities falls below a limit",
)
@dataclass(frozen=True)
class JointStop:
    """Ends a row's draft where the product of its confidences falls below `least`. Exact: it decides before a token is drawn.

    Args:
        least: The smallest product, from 0, which always drafts `longest` tokens, to 1.
        longest: The most tokens of a draft.
    """

    least: float = 0.3
    longest: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1 or self.longest < 1:
            raise ValueError(f"expected least from 0 to 1 and longest from 1, got {self}; correct them")

    def begin(self) -> "JointGrowth":
        return JointGrowth(self)


class JointGrowth:
    """The decisions of one draft. `product`, float [B], is the product of the confidences so far."""

    def __init__(self, control: JointStop):
        self.control, self.product = control, None

    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        self.product = confidence if self.product is None else self.product * confidence
        return self.product >= self.control.least  # bool [B], for the token that is drawn next

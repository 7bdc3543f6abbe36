"""How a block's frames become the number that a router looks at."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.video.rewards.scores import Reduction, Reward, reduced, scored
from mmspec.video.routing.router import Router, TargetAlone


@dataclass(frozen=True, slots=True)
class Judging:
    """router: says which drafts stand.   reward: scores frames; None for a router that looks at no score.
    reduction: what a block's score is made of its frames'.   Raises ValueError where a reward is missing.
    """

    router: Router
    reward: Reward | None = None
    reduction: Reduction = "min"

    def __post_init__(self) -> None:
        if self.router.judges and not callable(self.reward):
            raise ValueError(f"reward: expected a function of frames and prompt for router {self.router.name!r}, got "
                             f"{self.reward!r}; give one, such as CosineReward")  # fmt: skip

    def scores(self, frames: Tensor, prompt: str) -> Tensor:
        """float32 [F] of frames uint8 [F, 3, H, W].   Raises NotFinite, and ValueError for anything but a number a frame."""
        return scored(self.reward, frames, prompt)

    def reduced(self, scores: Tensor) -> Tensor:
        """The block's score."""
        return reduced(scores, self.reduction)


ALONE = Judging(TargetAlone())

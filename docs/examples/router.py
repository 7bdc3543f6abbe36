"""A router of video blocks: the more drafts it has kept in a row, the higher a score the next draft needs."""

import math

from torch import Tensor

from mmspec.methods import method
from mmspec.video.routing.routers import BlockEvidence, Router


@method(
    "rising",
    domain="video",
    kind="router",
    title="rising threshold",
    exact=False,
    about="drafts are kept while their score stays above a threshold that rises with each kept draft",
)
class Rising(Router):
    """Keeps a draft whose score is at least least + step * run, where `run` counts the drafts kept right before it.

    Relaxed, as every router. With `least=inf` no draft is kept, and the video is the target's own, bit for bit.

    Args:
        least: The score that the first draft after a block of the target needs.
        step: The increase for each draft kept since.
    """

    def __init__(self, least: float, step: float = 0.1):
        if math.isnan(least) or not 0 <= step < math.inf:
            raise ValueError(
                f"expected a number as least and a finite step from 0, got {least} and {step}; correct them"
            )
        self.least, self.step = least, step
        self.describe(least == math.inf, "least inf", f"reward >= {least:g} + {step:g} * run")

    def accept(self, evidence: BlockEvidence) -> Tensor:
        return evidence.reward[:, 1] >= self.least + self.step * evidence.run  # [B]; node 1 is the draft

"""ViSkip: drafting only where the next token does not lean on the pictures."""

from __future__ import annotations

from mmspec.vlm.drafters.viskip.state import VisionSkipState
from mmspec.vlm.target import TextTarget


class VisionSkip:
    """Leaves out drafts in rounds whose next token leans heavily on the pictures, in the manner of ViSkip ("MMSpec:
    Benchmarking Speculative Decoding for Vision-Language Models").

    The paper decides per step between a draft and plain decoding by how much the step depends on image tokens. Its code is
    not public; how the dependence is measured here is ours: the share of attention the drafter's newest slot gives to
    picture slots (`reliance`). That costs the drafter's pass over the accepted tokens, which a draft needs anyway, and one
    product with its keys; what is saved is the rest of the draft and its verification.

    drafter: a feature drafter that keeps slots of pictures, whole or compressed.
    threshold: rows above this share get no draft in this round; where all are, the round is a plain one.

    Exact whenever the drafter is: decided before anything of the draft is drawn. One transfer to the host per round.
    Raises ValueError for a threshold outside [0, 1], and at a request's first draft when its prompt shows pictures and the
    drafter keeps no slot of them.
    """

    def __init__(self, drafter: object, threshold: float = 0.3):
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold: expected a share of attention in [0, 1], got {threshold}")
        self.drafter, self.threshold = drafter, threshold
        self.name = f"viskip({drafter.name})"

    @property
    def levels(self) -> tuple[int, ...] | None:
        """Which of the target's states the drafter reads."""
        return getattr(self.drafter, "levels", None)

    def open(self, target: TextTarget) -> VisionSkipState:
        return VisionSkipState(self, self.drafter.open(target), target)

    def open_without_prefill(self, target: TextTarget) -> VisionSkipState:
        """State of one request whose prompt is read before the first draft."""
        open_lazily = getattr(self.drafter, "open_without_prefill", None) or self.drafter.open
        return VisionSkipState(self, open_lazily(target), target)

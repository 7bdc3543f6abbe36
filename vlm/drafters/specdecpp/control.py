"""The length control that ends a draft on the acceptance head's word."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.arguments import check_fields
from mmspec.core.drafting.placement import alongside
from mmspec.vlm.drafters.specdecpp.drafter import AcceptanceHead


@dataclass(frozen=True, slots=True)
class AcceptanceStop:
    """Ends a row's draft where some token of it is likelier than `threshold` to be rejected: 1 - prod P(accept) > threshold.

    head: trained for the drafter that uses this.   shortest, longest: bounds of a draft, the paper's.
    newest: judge the token drawn last, too. The public code draws one more token than it has judged, as its head reads the
        state behind the token before; so does this by default. A chain here has read its last token when it asks, so judging
        it costs nothing and ends drafts one token sooner.

    Judged are tokens drawn already, the law of the next one is not bent: sampled drafts stay on record. Rows of a batch end
    on their own.   Raises ValueError for a threshold that is no probability and for bounds out of order.
    """

    head: AcceptanceHead
    threshold: float = 0.3
    shortest: int = 2
    longest: int = 20
    newest: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold: expected a probability, got {self.threshold}")
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"shortest: expected 1 <= shortest <= longest, got {self.shortest} and {self.longest}")

    def begin(self) -> AcceptanceGrowth:
        return AcceptanceGrowth(self)


class AcceptanceGrowth:
    """One draft. kept: float32 [B], the chance that all judged tokens are accepted."""

    def __init__(self, control: AcceptanceStop):
        self.control = control
        self.kept: Tensor | None = None
        self.head = control.head

    @torch.no_grad()
    def grow(self, step: int, confidence: Tensor, feature: Tensor | None = None) -> Tensor:
        """See `Growth.grow`. Raises ValueError where the drafter tells no state."""
        control = self.control
        if feature is None:
            raise ValueError(
                "head: expected a drafter that tells its hidden state, got none; use ConfidenceStop with it"
            )
        if self.kept is None:
            self.kept = torch.ones_like(confidence, dtype=torch.float32)
            self.head = alongside(control.head, feature)
        before = self.kept
        if step:
            self.kept = before * self.head.accepts(feature)
        if step >= control.longest:
            return confidence < 0
        if step < control.shortest:
            return confidence >= 0
        return 1 - (self.kept if control.newest else before) <= control.threshold

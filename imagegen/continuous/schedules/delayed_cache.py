"""dKV-Cache: a drafter of masked tokens keeps the keys and values of decoded tokens, from the step after they were decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from mmspec.imagegen.continuous.masked_target import MaskedModel
from mmspec.imagegen.continuous.schedules.feature_cache import FeatureCachedModel, wanted_mask
from mmspec.io.validation import Range, check_fields
from mmspec.methods import method


@method(
    "delayed",
    domain="continuous",
    kind="schedule",
    title="delayed cache of a drafter (dKV-Cache)",
    exact=True,
    models=("masked",),
    order=2,
    about="a drafter keeps the keys and values of tokens from the step after they were decoded",
    paper="dKV-Cache: The Cache for Diffusion Language Models",
)
@dataclass(frozen=True, slots=True)
class DelayedCache:
    """A schedule of partial passes of the drafter in a window. The target does not use it.

    "dKV-Cache: The Cache for Diffusion Language Models". A pass computes the tokens that are masked, and those that were
    decoded in the step before, whose keys and values are kept from then on. Every window begins with a complete pass, so
    rejected drafts leave no trace and a row does not depend on the other rows. The verification is that of the same
    drafter without a cache, since it reads the means and scales that were drawn from.

    Args:
        every: The period of complete passes in a window; 1 caches nothing.
        greedy: Whether a pass computes only the tokens that it draws and those decoded in the step before.

    Raises:
        ValueError: A setting is out of range.
    """

    every: Annotated[int, Range(1, hint="use 1 to cache nothing")] = 8
    greedy: bool = False

    # read by the model with caches: all branches take part, and no other tokens are computed
    null = False
    tokens = 0.0

    __post_init__ = check_fields

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"delayed cache {self.every}{' greedy' if self.greedy else ''}"

    def whole(self, number: int) -> bool:
        return number % self.every == 0

    def requests(self, mask: Tensor, wanted: Tensor | None) -> Tensor:
        """Return bool [B, L], the tokens that a partial pass computes beside the newly decoded tokens. The pass draws
        the positions `wanted`, int64 [B, N]: L for none, None for all."""
        return wanted_mask(wanted, mask) if self.greedy else mask

    def window(self, model: MaskedModel) -> FeatureCachedModel:
        """Return the model for a window, with an empty cache."""
        return FeatureCachedModel(model, self)

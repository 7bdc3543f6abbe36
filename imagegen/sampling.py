"""From a pair of raw logits to the law a value is drawn from: guidance, then temperature, top-k and top-p.

Both steps are pure functions of logits and position, so that a draft's law and the target's are always comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from mmspec.core.arguments import LARGEST_SCALE, check_fields, number, whole
from mmspec.core.sample import without_tail

COLDEST = 1e-5
FilterOrder = Literal["top_k_first", "top_p_first"]


@dataclass(frozen=True, slots=True)
class Guidance:
    """Classifier-free guidance on raw logits: uncond + s (cond - uncond).

    scale: s; up to 1 only the conditional branch is run.   interval: guides indices 0..interval + 1 and leaves the later
    ones conditional, as LlamaGen's `cfg_interval` does; None or below 0 guides all.   final: s goes linearly from `scale`
    at the first value to `final` at the last one.   Raises ValueError for a scale outside 0..1000, and for both schedules.
    """

    scale: float = 1.0
    interval: int | None = None
    final: float | None = None

    def __post_init__(self) -> None:
        for scale in (self.scale, self.final or 0.0):
            number("guidance_scale", scale, 0, LARGEST_SCALE)
        check_fields(self)
        if self.interval is not None and self.final is not None:
            raise ValueError("guidance: expected an interval or a final scale, got both; leave one out")

    @property
    def paired(self) -> bool:
        """Whether the unconditional branch runs too."""
        return max(self.scale, self.final or 0.0) > 1

    def apply(self, cond: Tensor, uncond: Tensor, index: Tensor, total: int) -> Tensor:
        """Guided logits float32 [B, N, V]; index: int64 [B, N], which of `total` values each row decides."""
        if self.final is not None:
            scale = self.scale + (self.final - self.scale) * (index / max(total - 1, 1)).clamp(0, 1)
            return torch.lerp(uncond, cond, scale[..., None].to(cond.dtype))
        guided = uncond + self.scale * (cond - uncond)
        if self.interval is None or self.interval < 0:
            return guided
        return torch.where((index <= self.interval + 1)[..., None], guided, cond)


@dataclass(frozen=True, slots=True)
class Warp:
    """Temperature, top-k and top-p. temperature 0 is greedy; others count as at least 1e-5, as in LlamaGen's
    sampler. top_k 0 and top_p 1 leave everything in.

    filter_order: "top_k_first" as in transformers and LlamaGen's sampler, "top_p_first" as in LANTERN's public code. The
    two differ only where both filters are on: the second one sees the law that the first one leaves.
    Raises ValueError for settings out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    filter_order: FilterOrder = "top_k_first"

    def __post_init__(self) -> None:
        check_fields(self)
        number("temperature", self.temperature, 0)
        whole("top_k", self.top_k, 0)
        if not 0 < number("top_p", self.top_p, 0, 1):
            raise ValueError(f"top_p: expected a number above 0 and up to 1, got {self.top_p}; 1 leaves everything in")
        if self.filter_order not in get_args(FilterOrder):
            raise ValueError(f"filter_order: expected one of {', '.join(get_args(FilterOrder))}, got {self.filter_order!r}; "
                             "use one of these")  # fmt: skip

    @property
    def greedy(self) -> bool:
        """The likeliest value is taken."""
        return self.temperature == 0

    def apply(self, logits: Tensor) -> Tensor:
        """Log-weights float32 [..., V], -inf where cut; softmax of them is the law."""
        if self.greedy:
            return logits
        if self.temperature != 1:
            logits = logits / max(self.temperature, COLDEST)
        return without_tail(logits, self.top_k, self.top_p, self.filter_order)

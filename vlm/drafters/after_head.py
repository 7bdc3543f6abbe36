"""What a target does to its head's logits, so that a drafter that shares the head means the same by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from mmspec.vlm.architectures import Parts


@dataclass(frozen=True, slots=True)
class AfterHead:
    """cap * tanh(scale * logits / cap), without the tanh where `cap` is 0. The best token stays the best; laws change."""

    scale: float = 1.0
    cap: float = 0.0

    @classmethod
    def of(cls, parts: Parts) -> Self:
        """The target's, as the fields of its config say that Gemma, Cohere, Granite and Muse Glimmer read."""
        config = parts.model.config.get_text_config(decoder=True)
        scale = (getattr(config, "logit_scale", None) or 1.0) * (getattr(config, "output_multiplier", None) or 1.0)
        scale /= getattr(config, "logits_scaling", None) or 1.0
        return cls(float(scale), float(getattr(config, "final_logit_softcapping", None) or 0.0))

    def __call__(self, logits: Tensor) -> Tensor:
        """Of logits [..., V]."""
        scaled = logits * self.scale if self.scale != 1 else logits
        return (scaled / self.cap).tanh() * self.cap if self.cap else scaled

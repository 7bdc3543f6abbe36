"""Classifier-free guidance of video models that are not distilled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class VideoGuidance:
    """flow = without + scale (with - without), two passes a step, as the pipelines of diffusers have it: only above a scale
    of 1.   negative: float [1 or B, L, d], the text of the pass without the prompt.   Raises ValueError where it is missing.
    """

    scale: float = 1.0
    negative: Tensor | None = None

    def __post_init__(self) -> None:
        if self.scale > 1 and self.negative is None:
            raise ValueError(
                f"negative: expected a text for guidance of {self.scale}, got none; encode the empty prompt"
            )

    @property
    def passes(self) -> int:
        """Forward passes of one step."""
        return 2 if self.scale > 1 else 1

    def flow(self, call: Callable[[Tensor], Tensor], text: Tensor) -> Tensor:
        """The guided flow. call(text): one forward pass."""
        wanted = call(text)
        if self.scale <= 1:
            return wanted
        other = call(self.negative.to(text.device, text.dtype).expand(text.shape[0], -1, -1))
        return other + self.scale * (wanted - other)

"""Classifier-free guidance of video models that are not distilled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from mmspec.io.validation import Range, check_fields


@dataclass(frozen=True, slots=True)
class VideoGuidance:
    """flow = without + scale (with - without), in two passes per step, as in diffusers' pipelines.

    Args:
        scale: The guidance scale; guidance is off at 1 and below.
        negative: float [1 or B, L, d], the text of the pass without the prompt.

    Raises:
        ValueError: The scale is above 1 without `negative`.
    """

    scale: float = 1.0
    negative: Tensor | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.scale > 1 and self.negative is None:
            raise ValueError(
                f"negative: expected a text for guidance of {self.scale}, got none; encode the empty prompt"
            )

    @property
    def passes(self) -> int:
        """Forward passes per step."""
        return 2 if self.scale > 1 else 1

    @property
    def still(self) -> int:
        """Steps at the start of a block that leave its noise unchanged, without a pass."""
        return 0

    def flow(self, call: Callable[[Tensor], Tensor], text: Tensor) -> Tensor:
        """Return the guided flow; `call(text)` is a forward pass."""
        wanted = call(text)
        if self.scale <= 1:
            return wanted
        other = call(self.negative.to(text.device, text.dtype).expand(text.shape[0], -1, -1))
        return self._joined(wanted, other)

    def _joined(self, wanted: Tensor, other: Tensor) -> Tensor:
        return other + self.scale * (wanted - other)


@dataclass(frozen=True, slots=True)
class ZeroStarGuidance(VideoGuidance):
    """Guidance with a rescaled flow without the prompt, and first steps that leave the noise unchanged.

    Paper: "CFG-Zero*: Improved Classifier-Free Guidance for Flow Matching Models". The scale minimises the distance
    to the flow with the prompt. HeliosPyramidPipeline does the same, with two such steps, for models whose
    `is_cfg_zero_star` is set.

    Args:
        zeroed: The number of first steps that leave the noise unchanged.

    Raises:
        ValueError: `zeroed` is negative.
    """

    zeroed: Annotated[int, Range(0, hint="use 0 for none")] = 2

    @property
    def still(self) -> int:
        return self.zeroed if self.scale > 1 else 0

    def _joined(self, wanted: Tensor, other: Tensor) -> Tensor:
        prompted, plain = (flow.float().flatten(1) for flow in (wanted, other))
        share = (prompted * plain).sum(1) / (plain.square().sum(1) + 1e-8)
        other = other * share.to(other.dtype).reshape(-1, *[1] * (other.dim() - 1))
        return other + self.scale * (wanted - other)

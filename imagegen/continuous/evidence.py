"""What a pass over continuous tokens says."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.evidence import Evidence
from mmspec.imagegen.continuous.head import Trajectory


@dataclass(slots=True)
class TokenEvidence(Evidence):
    """Evidence of a target that draws every token itself, with the noise of its position.

    own: float32 [B, N, d], its draw for each node, finite everywhere.   mean: of the last denoising step.
    trajectory: the walk behind it, rows [B * N], raw: rows of `bad` nodes hold NaN or Inf.
    """

    own: Tensor | None = None
    trajectory: Trajectory | None = None

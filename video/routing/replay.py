"""Routers replayed on blocks that both models generated: the reward that is left at equal numbers of rewritten blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.video.rewards.scores import Reduction
from mmspec.video.routing.learned import FEATURES, Advantage


def replayed_rewards(
    features: Tensor, gains: Tensor, rewrites: int, model: Advantage | None = None, reduction: Reduction = "min"
) -> dict[str, float]:
    """Return the mean reward of blocks of which the target rewrites some, by the router that chooses them.

    The blocks stay those that were drawn, so a router's effect on later blocks does not count. Blocks on which a model
    was trained flatter it: replay other videos.

    Args:
        features: float [N, K], of the drafts, see `scored_pairs`.
        gains: float [N], the scores of the target's blocks minus those of the drafts.
        rewrites: The number of blocks that the target rewrites.
        model: A model of the gain; None leaves its router out.
        reduction: How a block's score was made from those of its frames, as in `scored_pairs`.

    Returns:
        Means by router. "random" rewrites all sets of blocks alike. "sdvg" rewrites the drafts of the lowest reward
        (`Threshold`), "learned" those of the highest predicted gain (`Learned`). "oracle" rewrites those of the highest
        true gain: no choice of as many blocks has a higher mean.

    Raises:
        ValueError: The number of rewrites is outside 0..N, or the pairs do not fit together.
    """
    if features.dim() != 2 or features.shape[1] != len(FEATURES) or gains.shape != features.shape[:1]:
        raise ValueError(
            f"features, gains: expected [N, {len(FEATURES)}] and [N], got {tuple(features.shape)} and "
            f"{tuple(gains.shape)}; use the pairs of scored_pairs"
        )
    if not 0 <= rewrites <= len(gains):
        raise ValueError(f"rewrites: expected 0 to {len(gains)} blocks, got {rewrites}; choose fewer")
    draft, gains = features[:, FEATURES.index(f"reward_{reduction}")].double(), gains.double()
    urgency = {"sdvg": -draft, "oracle": gains}
    if model is not None:
        with torch.no_grad():
            urgency["learned"] = model(features.to(model.mean)).to(gains)
    share = rewrites / max(len(gains), 1)
    means = {"random": (draft.mean() + share * gains.mean()).item()}
    for router, order in urgency.items():
        chosen = order.topk(rewrites).indices
        means[router] = ((draft.sum() + gains[chosen].sum()) / len(gains)).item()
    return means

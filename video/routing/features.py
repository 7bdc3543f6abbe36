"""What a learned router sees of a draft: numbers that are at hand once it is scored."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.video.rewards.scores import reduced

FEATURES = (
    "reward_min", "reward_mean", "reward_spread", "reward_trend", "below_anchor_min", "below_anchor_mean", "progress", "run",
    "latent_jump", "latent_motion", "pixel_jump", "pixel_motion",
)  # fmt: skip


def features(
    scores: Tensor,
    anchor: Tensor,
    latents: tuple[Tensor, Tensor],
    frames: tuple[Tensor, Tensor],
    progress: float,
    run: int,
) -> Tensor:
    """float32 [len(FEATURES)] on the host.

    scores, anchor: float [F], of the frames of the draft and of the block that began the prompt.
    latents: [1, C, F, h, w] of the committed block before and of the draft.   frames: uint8 [N, 3, H, W] of the same.
    progress: share of the video that is committed.   run: drafts that stand in a row before this one.
    jump: mean change across the boundary.   motion: mean change from frame to frame inside the draft.
    """
    before, own = (block[0].transpose(0, 1).float() for block in latents)  # [F, C, h, w]
    shown, seen = (block.float() / 255 for block in frames)
    least, mean = reduced(scores), reduced(scores, "mean")
    parts = [
        least, mean, scores.std(correction=0), scores[-1] - scores[0],
        reduced(anchor) - least, reduced(anchor, "mean") - mean, progress, run,
        _jump(before, own), _motion(own), _jump(shown, seen), _motion(seen),
    ]  # fmt: skip
    return torch.tensor([float(part) for part in parts])


def _jump(before: Tensor, after: Tensor) -> Tensor:
    return (after[0] - before[-1]).abs().mean()


def _motion(block: Tensor) -> Tensor | float:
    return block.diff(dim=0).abs().mean() if len(block) > 1 else 0.0

"""Scores of frames: who gives them, what is refused, what a block's score is made of."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

Reduction = Literal["min", "mean"]


class NotFinite(ValueError):
    """NaN or Inf where a number belongs: what one video stops for and others beside it do not."""


class Reward(Protocol):
    """Scores frames on how well they fit a prompt; any function of this shape will do."""

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """frames: [F, 3, H, W], float in -1..1 or uint8.   prompt: what was asked for.   Returns float32 [F], more is better.

        The prompt should be the short one that a person wrote: published rewards read 35 to 77 tokens and were trained on
        such, while video models are often given a long rewording of it.
        """
        ...


def scored(reward: Reward, frames: Tensor, prompt: str) -> Tensor:
    """float32 [F]: what `reward` says, checked.

    Raises ValueError for anything but one number a frame, and NotFinite where one is NaN or Inf: a comparison with NaN is
    false, so that a threshold would quietly decide.
    """
    scores, name = reward(frames, prompt), getattr(reward, "name", type(reward).__name__)
    if not isinstance(scores, Tensor) or scores.shape != frames.shape[:1]:
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"{name}: expected one score for each of {len(frames)} frames, got {got}; correct the reward")
    scores = scores.float()
    spoiled = (~scores.isfinite()).nonzero().flatten().tolist()
    if spoiled:
        listed = ", ".join(map(str, spoiled[:4])) + ("..." if len(spoiled) > 4 else "")
        raise NotFinite(f"{name}: expected finite scores, got {scores[spoiled[0]].item()} for frame {listed} of "
                         f"{len(frames)}; check the frames and the weights of the reward")  # fmt: skip
    return scores


def reduced(scores: Tensor, how: Reduction = "min", dim: int = -1) -> Tensor:
    """[..., F] -> [...]: a block's score of its frames', a frame's of its crops'.

    The least of twelve numbers lies lower than that of nine, which a block at the start of a video has; their mean does not.
    """
    if how not in get_args(Reduction):
        raise ValueError(f"reduction: expected one of {', '.join(get_args(Reduction))}, got {how!r}; use one of them")
    return scores.amin(dim) if how == "min" else torch.mean(scores, dim)

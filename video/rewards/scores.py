"""Scores of frames: the reward protocol, the squares of a frame that a reward reads, and a block's score."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol, get_args

import torch
from einops import rearrange
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

Reduction = Literal["min", "mean"]


class NotFinite(ValueError):
    """NaN or Inf where a number belongs: what one video stops for and others beside it do not."""


class Reward(Protocol):
    """Scores frames on how well they fit a prompt; any function of this shape will do."""

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """frames: [F, 3, H, W], float in -1..1 or uint8.   prompt: the short text that a person wrote, not a long rewording:
        published rewards read 35 to 77 tokens.   Returns float32 [F], more is better."""


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


def _check_reduction(how: str) -> None:
    if how not in get_args(Reduction):
        raise ValueError(f"reduction: expected one of {', '.join(get_args(Reduction))}, got {how!r}; use one of them")


def reduced(scores: Tensor, how: Reduction = "min", dim: int = -1) -> Tensor:
    """[..., F] -> [...]: a block's score of its frames', a frame's of its crops'.

    The least of twelve numbers lies lower than that of nine, which a block at the start of a video has; their mean does not.
    """
    _check_reduction(how)
    return scores.amin(dim) if how == "min" else torch.mean(scores, dim)


MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP, and of BLIP


@dataclass(frozen=True, slots=True)
class Views:
    """What of a frame a reward looks at.

    size: pixels a side of a square.
    crops: squares along the longer side of a frame whose shorter side is resized to `size` (bicubic), evenly from end to end;
        1 is the centre crop of the published models, of which a frame of 832x480 shows 58 % of the width. "cover": as few as
        show all of it. "letterbox": the whole frame in one square, black beside it.
    reduction: how a frame's score is made of its squares'.
    """

    size: int = 224
    crops: int | Literal["cover", "letterbox"] = 1
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: expected at least 1 pixel, got {self.size}; use the input size of the model")
        if self.crops not in ("cover", "letterbox") and (type(self.crops) is not int or self.crops < 1):
            raise ValueError(
                f"crops: expected a number above 0, 'cover' or 'letterbox', got {self.crops!r}; use one of them"
            )
        _check_reduction(self.reduction)

    def __call__(self, frames: Tensor) -> Tensor:
        """uint8 [F, 3, H, W] -> uint8 [F, V, 3, size, size]."""
        if self.crops == "letterbox":
            return self._letterbox(frames)[:, None]
        return torch.stack(
            self._crops(tv.resize(frames, [self.size], InterpolationMode.BICUBIC, antialias=True)), dim=1
        )

    def joined(self, scores: Tensor, frames: int) -> Tensor:
        """[F * V] -> [F]."""
        return reduced(rearrange(scores, "(f v) -> f v", f=frames), self.reduction)

    def _crops(self, resized: Tensor) -> list[Tensor]:
        height, width = resized.shape[-2:]
        spare = max(height, width) - self.size
        count = ceil(max(height, width) / self.size) if self.crops == "cover" else self.crops
        starts = [round(spare / 2)] if count == 1 else [round(spare * n / (count - 1)) for n in range(count)]
        wide = width >= height
        return [tv.crop(resized, 0 if wide else at, at if wide else 0, self.size, self.size) for at in starts]

    def _letterbox(self, frames: Tensor) -> Tensor:
        height, width = (max(1, round(side * self.size / max(frames.shape[-2:]))) for side in frames.shape[-2:])
        resized = tv.resize(frames, [height, width], InterpolationMode.BICUBIC, antialias=True)
        left, top = (self.size - width) // 2, (self.size - height) // 2
        return tv.pad(resized, [left, top, self.size - width - left, self.size - height - top])


def to_bytes(frames: Tensor) -> Tensor:
    """Frames in 8 bits, as a file holds them, so that a video scores what its file scores: uint8 [F, 3, H, W].

    Raises ValueError for anything but [F, 3, H, W], float in -1..1 or uint8.
    """
    if frames.ndim != 4 or frames.shape[1] != 3 or not frames.numel():
        raise ValueError(f"frames: expected [F, 3, H, W], got {tuple(frames.shape)}; put the frames of one video first")
    if frames.dtype == torch.uint8:
        return frames
    if not frames.is_floating_point():
        raise ValueError(f"frames: expected float in -1..1 or uint8, got {frames.dtype}; convert them")
    if not frames.isfinite().all():
        raise ValueError("frames: expected finite pixels, got NaN or Inf; check what drew them")
    return ((frames.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def normalised(squares: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 [N, 3, S, S] -> float [N, 3, S, S] with the mean and spread of CLIP."""
    return tv.normalize(squares.float() / 255, MEAN, STD).to(dtype)

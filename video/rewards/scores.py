"""Scores of frames: the reward protocol, the squares of a frame that a reward reads, and a block's score."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal, Protocol, get_args

import torch
from einops import rearrange
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from mmspec.io.validation import Range, Size, check_fields

Reduction = Literal["min", "mean"]


class NotFinite(ValueError):
    """NaN or Inf in latents, frames or scores; it stops one video and leaves the others running."""


class Reward(Protocol):
    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        """Return a score per frame, float32 [F], higher is better, of frames [F, 3, H, W], float in -1..1 or uint8. The
        prompt is the short text that a person wrote, not a long rewording; published rewards read 35 to 77 tokens."""


def scored(reward: Reward, frames: Tensor, prompt: str) -> Tensor:
    """Return checked scores, float32 [F]; a comparison with NaN is false, so a threshold would decide silently."""
    scores, name = reward(frames, prompt), getattr(reward, "name", type(reward).__name__)
    if not isinstance(scores, Tensor) or scores.shape != frames.shape[:1]:
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"{name}: expected one score for each of {len(frames)} frames, got {got}; correct the reward")
    scores = scores.float()
    spoiled = (~scores.isfinite()).nonzero().flatten().tolist()
    if spoiled:
        listed = ", ".join(map(str, spoiled[:4])) + ("..." if len(spoiled) > 4 else "")
        raise NotFinite(
            f"{name}: expected finite scores, got {scores[spoiled[0]].item()} for frame {listed} of "
            f"{len(frames)}; check the frames and the weights of the reward"
        )
    return scores


def reduced(scores: Tensor, how: Reduction = "min", dim: int = -1) -> Tensor:
    """Reduce [..., F] to [...]: frames to the score of a block, or crops to the score of a frame. The expected minimum
    falls with the number of frames, and the first block of a video may have fewer; the mean has no such bias."""
    if how not in get_args(Reduction):
        raise ValueError(f"reduction: expected one of {', '.join(get_args(Reduction))}, got {how!r}; use one of them")
    return scores.amin(dim) if how == "min" else torch.mean(scores, dim)


MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP and BLIP


@dataclass(frozen=True, slots=True)
class Views:
    """The squares of a frame that a reward reads.

    Args:
        size: Pixels per side of a square.
        crops: The number of squares along the longer side, evenly spaced; the shorter side is resized to `size`
            (bicubic). 1 is the published centre crop, which shows 58 % of the width at 832x480. "cover" takes the
            fewest squares that show the whole frame. "letterbox" shows it in one square with black borders.
        reduction: How the score of a frame follows from its squares.

    Raises:
        ValueError: A setting is out of range.
    """

    size: Annotated[int, Range(1, hint="use the input size of the model")] = 224
    crops: Size | Literal["cover", "letterbox"] = 1
    reduction: Reduction = "mean"

    __post_init__ = check_fields

    def __call__(self, frames: Tensor) -> Tensor:
        """Return the squares, uint8 [F, V, 3, size, size], of frames uint8 [F, 3, H, W]."""
        if self.crops == "letterbox":
            return self._letterbox(frames)[:, None]
        return torch.stack(
            self._crops(tv.resize(frames, [self.size], InterpolationMode.BICUBIC, antialias=True)), dim=1
        )

    def joined(self, scores: Tensor, frames: int) -> Tensor:
        """Reduce scores [F * V] of squares to scores [F] of frames."""
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
    """Return frames, float in -1..1 or uint8, as uint8 [F, 3, H, W], as in a file, so that both have the same score."""
    if frames.ndim != 4 or frames.shape[1] != 3 or not frames.numel():
        raise ValueError(f"frames: expected [F, 3, H, W], got {tuple(frames.shape)}; pass the frames of a single video")
    if frames.dtype == torch.uint8:
        return frames
    if not frames.is_floating_point():
        raise ValueError(f"frames: expected float in -1..1 or uint8, got {frames.dtype}; convert them")
    if not frames.isfinite().all():
        raise ValueError("frames: expected finite pixels, got NaN or Inf; check the model that generated them")
    low, high = frames.aminmax()
    if low >= 0 and high > 2:  # a decoder's frames exceed 1 by little, and are dark somewhere
        raise ValueError(
            f"frames: expected float in -1..1 or uint8, got floats from {low:g} to {high:g}; convert frames of "
            "0..255 to uint8"
        )
    return ((frames.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def normalised(squares: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return squares uint8 [N, 3, S, S] as float, with the mean and standard deviation of CLIP."""
    return tv.normalize(squares.float() / 255, MEAN, STD).to(dtype)

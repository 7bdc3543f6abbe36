"""Clips of moving scenes as pixels: a scene from any frame on, and a cut to another scene where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...world.moving import MovingScene
from ...world.moving_frames import render_frames
from ...world.pictures import PICTURE_SIDE


@dataclass(frozen=True, slots=True)
class Clip:
    """scene: shown from its frame `first` on.   then: what is shown from frame `cut` of the clip on, from its own start; None
    where there is no cut."""

    scene: MovingScene
    first: int = 0
    then: MovingScene | None = None
    cut: int = 0

    def frames(self, count: int) -> np.ndarray:
        """uint8 [count, 64, 64, 3]."""
        if self.then is None or self.cut >= count:
            return render_frames(self.scene, count, self.first)
        shown = (render_frames(self.scene, self.cut, self.first), render_frames(self.then, count - self.cut))
        return np.concatenate(shown)

    def filled(self, count: int) -> np.ndarray:
        """bool [count, 64, 64], True in the squares that objects fill."""
        found = np.zeros((count, PICTURE_SIDE, PICTURE_SIDE), bool)
        for frame in range(count):
            cut = self.then is not None and frame >= self.cut
            scene, at = (self.then, frame - self.cut) if cut else (self.scene, self.first + frame)
            for mover in scene.movers:
                x, y = mover.at(at)
                found[frame, y : y + mover.pixels, x : x + mover.pixels] = True
        return found


def clip_pixels(clips: Sequence[Clip], frames: int) -> Tensor:
    """float32 [B, 3, frames, 64, 64] in -1..1."""
    drawn = np.stack([clip.frames(frames) for clip in clips])
    return torch.from_numpy(drawn).permute(0, 4, 1, 2, 3).float().div_(127.5).sub_(1.0).contiguous()


def clip_filled(clips: Sequence[Clip], frames: int) -> Tensor:
    """float32 [B, 1, frames, 64, 64], 1 where objects are and 0 elsewhere."""
    return torch.from_numpy(np.stack([clip.filled(frames) for clip in clips])).float()[:, None]


def clip_bytes(pixels: Tensor) -> np.ndarray:
    """float [3, N, H, W] in -1..1 -> uint8 [N, H, W, 3]."""
    scaled = (pixels.detach().float().clamp(-1, 1) + 1) * 127.5
    return scaled.round().to(torch.uint8).permute(1, 2, 3, 0).contiguous().cpu().numpy()

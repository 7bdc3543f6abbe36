"""The training clips of the video models, as latents that are computed once: whole clips, cuts, and first blocks.

A prompt fixes motion and not position. With noise independent of the scene, a model of few steps predicts the mean of
all positions at first, and decides late. Here the noise of a clip is sampled first, and its objects are placed where
that noise already resembles them. These are couplings as in "Multisample Flow Matching", over the whole distribution.
The noise stays white and independent of the scene's content, so samplers use the same distribution. Paths from noise to
clip become nearly straight, and a few Euler steps suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from mmspec.video.model import BlockPlan
from mmspec.video.vae import StreamingWanVAE
from mmspec.zoo.training.training_sets import batch_members, cached_set, fingerprint
from mmspec.zoo.world.image import IMAGE_SCENE_SIDE
from mmspec.zoo.world.pixels import to_bytes, to_pixels
from mmspec.zoo.world.scene import COLORS
from mmspec.zoo.world.video import DIRECTIONS, STEADY, Mover, VideoScene, render_frames, sample_video_scene

CELL = 8  # pixels of a latent's side
_BLUR = 0.8  # deviation of an object's mark, in latents
_HALF = IMAGE_SCENE_SIDE // 2


def coupling_noise(seed: int, channels: int, frames: int) -> Tensor:
    """Return float32 [C, F, 8, 8], the noise that decides the initial positions of a clip."""
    side = IMAGE_SCENE_SIDE // CELL
    return torch.randn(channels, frames, side, side, generator=torch.Generator().manual_seed(seed))


def place_movers(scene: VideoScene, noise: Tensor, spans: Sequence[tuple[int, int]]) -> VideoScene:
    """Return the scene with each mover placed by the channel of its color in the noise float32 [C, F, 8, 8]; the rest
    is unchanged. `spans` are the pixel frames (first, end) of each latent frame."""
    movers, noise = scene.movers, noise.numpy()
    if len(movers) == 1:
        return replace(scene, movers=(_best(movers[0], noise, spans, None)[1],))
    orders = []
    for halves in ((0, 1), (1, 0)):  # assigns the halves of the picture to the movers
        placed = [_best(mover, noise, spans, half) for mover, half in zip(movers, halves, strict=True)]
        orders.append((sum(score for score, _ in placed), tuple(mover for _, mover in placed)))
    return replace(scene, movers=max(orders, key=lambda order: order[0])[1])


def coupled_channels(scene: VideoScene, channels: int) -> list[int]:
    """Return the channels of the noise that decide a scene's positions; the others may be resampled."""
    return sorted({channel_of(mover, channels) for mover in scene.movers})


def channel_of(mover: Mover, channels: int) -> int:
    return tuple(COLORS).index(mover.color) % channels


def _best(mover: Mover, noise: np.ndarray, spans: Sequence[tuple[int, int]], half: int | None) -> tuple[float, Mover]:
    """Return the highest score over all possible positions of a mover, and the mover there."""
    channel = noise[channel_of(mover, len(noise))]
    step_x, step_y = DIRECTIONS[mover.direction]
    columns, rows = (
        _starts(step * abs(size), mover.pixels, half if not step else None)
        for step, size in ((step_x, mover.dx), (step_y, mover.dy))
    )
    score = np.zeros((len(rows), len(columns)))
    for frame, span in zip(channel, spans, strict=True):
        across, down = (_centres(starts, step, mover, span) for starts, step in ((columns, mover.dx), (rows, mover.dy)))
        score += _marks()[down] @ frame @ _marks()[across].T
    row, column = np.unravel_index(score.argmax(), score.shape)
    return float(score.max()), replace(mover, x=int(columns[column]), y=int(rows[row]))


def _starts(step: int, pixels: int, half: int | None) -> np.ndarray:
    """Return the initial positions of an object along an axis that `moving` allows."""
    room = IMAGE_SCENE_SIDE - pixels
    if step:
        free = np.arange(room - STEADY * abs(step) + 1)
        return free if step > 0 else free + STEADY * abs(step)
    return np.arange(room + 1) if half is None else np.arange(_HALF - pixels + 1) + half * _HALF


def _centres(starts: np.ndarray, step: int, mover: Mover, span: tuple[int, int]) -> np.ndarray:
    """Return int64 [S]: for every start, the middle pixel of the object, averaged over the frames of a latent."""
    at = (starts[:, None] + step * np.arange(*span)) % (2 * mover.room)
    return np.rint(np.minimum(at, 2 * mover.room - at).mean(1) + (mover.pixels - 1) / 2).astype(int)


@lru_cache(maxsize=1)
def _marks() -> np.ndarray:
    """Return [64, 8] with unit rows: the share of each latent in an object whose middle is at a pixel."""
    middles = (np.arange(IMAGE_SCENE_SIDE // CELL) + 0.5) * CELL
    away = (np.arange(IMAGE_SCENE_SIDE)[:, None] + 0.5 - middles) / CELL
    weight = np.exp(-0.5 * (away / _BLUR) ** 2)
    return weight / np.linalg.norm(weight, axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip of a scene, which may cut to another scene."""

    scene: VideoScene  # shown from its frame `first` on
    first: int = 0
    then: VideoScene | None = None  # the scene from frame `cut` of the clip on, from its own start; None without a cut
    cut: int = 0

    def frames(self, count: int) -> np.ndarray:
        """Return the frames, uint8 [count, 64, 64, 3]."""
        if self.then is None or self.cut >= count:
            return render_frames(self.scene, count, self.first)
        shown = (render_frames(self.scene, self.cut, self.first), render_frames(self.then, count - self.cut))
        return np.concatenate(shown)

    def filled(self, count: int) -> np.ndarray:
        """Return bool [count, 64, 64], True in the squares that objects fill."""
        cells = np.zeros((count, IMAGE_SCENE_SIDE, IMAGE_SCENE_SIDE), bool)
        for frame in range(count):
            cut = self.then is not None and frame >= self.cut
            scene, at = (self.then, frame - self.cut) if cut else (self.scene, self.first + frame)
            for mover in scene.movers:
                x, y = mover.at(at)
                cells[frame, y : y + mover.pixels, x : x + mover.pixels] = True
        return cells


def clip_pixels(clips: Sequence[Clip], frames: int) -> Tensor:
    """Return the pixels of clips, float32 [B, 3, frames, 64, 64] in -1..1."""
    drawn = to_pixels(np.concatenate([clip.frames(frames) for clip in clips]))
    return rearrange(drawn, "(b f) c h w -> b c f h w", f=frames).contiguous()


def clip_filled(clips: Sequence[Clip], frames: int) -> Tensor:
    """Return float32 [B, 1, frames, 64, 64], 1 where objects are and 0 elsewhere."""
    return torch.from_numpy(np.stack([clip.filled(frames) for clip in clips])).float()[:, None]


def clip_bytes(pixels: Tensor) -> np.ndarray:
    """Convert pixels float [3, N, H, W] in -1..1 to uint8 [N, H, W, 3]."""
    return np.ascontiguousarray(to_bytes(rearrange(pixels, "c f h w -> f c h w")))


Kind = Literal["whole", "cuts", "starts"]
PLAN = BlockPlan(3)
BLOCKS = 4  # blocks of a clip: the attention window of a block, and another block
CUT = 2  # the block at which a clip of "cuts" shows another scene
SEEDS: dict[Kind, int] = {"whole": 7 << 28, "cuts": (7 << 28) + (1 << 26), "starts": (7 << 28) + (2 << 26)}
_CHUNK, _BATCH = 256, 4


def blocks_of(kind: Kind) -> int:
    return 1 if kind == "starts" else BLOCKS


def spans(block: int, each: int = 4) -> list[tuple[int, int]]:
    """Return the pixel frames (first, end) of each latent frame of a block, counted from the block's start."""
    frames = range(PLAN.start(block), PLAN.start(block) + PLAN.frames(block))
    bounds = [(max(1 + (frame - 1) * each, 0), 1 + frame * each) for frame in frames]
    return [(first - bounds[0][0], last - bounds[0][0]) for first, last in bounds]


def pixel_frames(blocks: int, each: int = 4) -> int:
    return 1 + (PLAN.start(blocks) - 1) * each


PROMPT_FRAMES = pixel_frames(7)  # frames within which prompts mention bounces


@dataclass(frozen=True, slots=True)
class TrainingClip:
    scenes: tuple[tuple[int, VideoScene], ...]  # each with its first block
    noise: tuple[Tensor, ...]  # float32 [C, 3, 8, 8] per scene, of its first block, which placed its objects

    def clip(self) -> Clip:
        (_, scene), *later = self.scenes
        return Clip(scene, then=later[0][1], cut=pixel_frames(later[0][0])) if later else Clip(scene)


def training_clip(kind: Kind, index: int, channels: int, first: int | None = None) -> TrainingClip:
    """Return the clip at an index of a set, the training set where `first` is None: a pure function of its arguments."""
    seed = (SEEDS[kind] if first is None else first) + 2 * index
    scenes, drawn = [], []
    for number, block in enumerate((0, CUT) if kind == "cuts" else (0,)):
        noise = coupling_noise(seed + number, channels, PLAN.frames(block))
        scenes.append((block, place_movers(sample_video_scene(seed + number), noise, spans(block))))
        drawn.append(noise)
    return TrainingClip(tuple(scenes), tuple(drawn))


@dataclass(frozen=True, slots=True)
class ClipSet:
    kind: Kind
    latents: Tensor  # float16 [N, C, F, 8, 8], normalised, of its first N clips

    def __len__(self) -> int:
        return len(self.latents)

    def batch(self, turn: int, size: int) -> tuple[list[TrainingClip], Tensor]:
        """Return the clips of a turn and their latents float32 [size, C, F, 8, 8]; every epoch has another order."""
        numbers = batch_members(len(self), size, turn)
        members = [training_clip(self.kind, index, self.latents.shape[1]) for index in numbers]
        return members, self.latents[numbers].float()


def clip_set(vae: StreamingWanVAE, work: Path, kind: Kind, count: int) -> ClipSet:
    """Return the latents of a set, cached in `work/video_latents/KIND`."""
    frames, channels = pixel_frames(blocks_of(kind)), vae.layout.channels

    def make(first: int, size: int) -> dict[str, Tensor]:
        pixels = clip_pixels([training_clip(kind, first + i, channels).clip() for i in range(size)], frames)
        return {"latents": vae.encode(pixels)[0].half().cpu()}

    mark, folder = fingerprint(vae.model, (vae.layout, frames)), work / "video_latents" / kind
    title = f"latents of {kind} clips"
    return ClipSet(kind, **cached_set(title, folder, "latents", mark, count, make, chunk=_CHUNK, batch=_BATCH))

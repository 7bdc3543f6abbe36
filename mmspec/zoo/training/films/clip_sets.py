"""The clips that the zoo's video models are trained on, as latents that are made once: whole ones, cuts, and first blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from mmspec.video.plan import BlockPlan
from mmspec.video.vae.wan import StreamingWanVAE

from ...files.fixed_sets import fingerprint, kept
from ...world.moving import MovingScene, sample_moving
from ..bars import bars
from ..turns import turn_of
from .moving_clips import Clip, clip_pixels
from .starts import own_noise, placed

Kind = Literal["whole", "cuts", "starts"]
PLAN = BlockPlan(3)
BLOCKS = 4  # of a clip: the window of a block, its own included, and one more
CUT = 2  # the block at which a clip of "cuts" shows another scene
SEEDS: dict[Kind, int] = {"whole": 7 << 28, "cuts": (7 << 28) + (1 << 26), "starts": (7 << 28) + (2 << 26)}
_CHUNK, _BATCH = 256, 4


def blocks_of(kind: Kind) -> int:
    """Blocks of the set's clips."""
    return 1 if kind == "starts" else BLOCKS


def spans(block: int, each: int = 4) -> list[tuple[int, int]]:
    """Of each latent frame of a block, the pixel frames it stands for, counted from the block's first."""
    frames = range(PLAN.start(block), PLAN.start(block) + PLAN.frames(block))
    bounds = [(max(1 + (frame - 1) * each, 0), 1 + frame * each) for frame in frames]
    return [(first - bounds[0][0], last - bounds[0][0]) for first, last in bounds]


def pixel_frames(blocks: int, each: int = 4) -> int:
    """Pixel frames of so many blocks from the start of a video."""
    return 1 + (PLAN.start(blocks) - 1) * each


TOLD = pixel_frames(7)  # frames of whose bounces prompts may tell


@dataclass(frozen=True, slots=True)
class Member:
    """One clip of a set: what each of its scenes is, from which block on, and the noise that has put its objects there."""

    scenes: tuple[tuple[int, MovingScene], ...]
    noise: tuple[Tensor, ...]  # [C, 3, 8, 8] of the first block of each scene

    def clip(self) -> Clip:
        (_, scene), *later = self.scenes
        return Clip(scene, then=later[0][1], cut=pixel_frames(later[0][0])) if later else Clip(scene)


def member(kind: Kind, index: int, channels: int, first: int | None = None) -> Member:
    """The clip at an index of a set: a pure function of its arguments.

    first: seed of the set, None for the one that is trained on.
    """
    seed = (SEEDS[kind] if first is None else first) + 2 * index
    scenes, drawn = [], []
    for number, block in enumerate((0, CUT) if kind == "cuts" else (0,)):
        noise = own_noise(seed + number, channels, PLAN.frames(block))
        scenes.append((block, placed(sample_moving(seed + number), noise, spans(block))))
        drawn.append(noise)
    return Member(tuple(scenes), tuple(drawn))


@dataclass(frozen=True, slots=True)
class ClipSet:
    """kind, and latents float16 [N, C, F, 8, 8] of its first N clips, normalised."""

    kind: Kind
    latents: Tensor

    def __len__(self) -> int:
        return len(self.latents)

    def batch(self, turn: int, size: int) -> tuple[list[Member], Tensor]:
        """The clips of a turn and their latents float32 [size, C, F, 8, 8]: every epoch in an order of its own."""
        taken = turn_of(len(self), size, turn)
        members = [member(self.kind, index, self.latents.shape[1]) for index in taken]
        return members, self.latents[taken].float()


def clip_set(vae: StreamingWanVAE, work: Path, kind: Kind, count: int) -> ClipSet:
    """A set's latents, which lie in `work/video_latents/KIND` and are made where they are not."""
    frames, channels = pixel_frames(blocks_of(kind)), vae.layout.channels

    def make(first: int, size: int) -> dict[str, Tensor]:
        pixels = clip_pixels([member(kind, first + i, channels).clip() for i in range(size)], frames)
        return {"latents": vae.encode(pixels)[0].half().cpu()}

    with bars() as progress:
        bar = progress.add_task(f"latents of {kind} clips", total=count, note="")
        made: Callable[[int], None] = lambda done: progress.update(bar, advance=done)  # noqa: E731
        mark = fingerprint(vae.model, (vae.layout, frames))
        found = kept(work / "video_latents" / kind, "latents", mark, count, make, chunk=_CHUNK, batch=_BATCH,
                     on_made=made)  # fmt: skip
    return ClipSet(kind, found["latents"])

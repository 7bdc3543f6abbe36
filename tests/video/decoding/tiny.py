"""A tiny pair with an autoencoder, and rewards that say what a test wants."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from mmspec.video import SDVG, BlockVideoPipeline, Cached, StreamingWanVAE
from tests.video.tiny import text, video, wan
from tests.video.vae.tiny import autoencoder

SIZE = (8, 8)  # pixels: GRID's cells at a stride of 2


@lru_cache
def vae() -> StreamingWanVAE:
    return StreamingWanVAE(autoencoder("two frames a latent").requires_grad_(False))


def encode(texts: list[str]) -> Tensor:
    """A text encoder: states that follow from the words."""
    return torch.cat([text(sum(map(ord, one)) % 997) for one in texts])


def pipeline(context: object = None, blocks: int = 5, **how: object) -> BlockVideoPipeline:
    return BlockVideoPipeline(video(context, **how), vae(), encode, size=SIZE, blocks=blocks)


def drafter(context: object = None, seed: int = 1, **how: object):  # noqa: ANN201
    return video(context or Cached(), wan(seed), **how)


def sdvg(reward: object = None, threshold: float | None = 0.0, **how: object) -> SDVG:
    if "router" in how:
        threshold = None
    return SDVG(how.pop("drafter", None) or drafter(), reward, threshold, **how)


class Told:
    """Scores that a test says: of each prompt, one for every block that is scored, in turn; twelve frames or nine."""

    name = "told"

    def __init__(self, scores: dict[str, list[float]]):
        self.left = {prompt: list(row) for prompt, row in scores.items()}

    def __call__(self, frames: Tensor, prompt: str) -> Tensor:
        return torch.full((len(frames),), float(self.left[prompt].pop(0)))


def bright(frames: Tensor, prompt: str) -> Tensor:
    """A reward that follows from the pixels."""
    return frames.float().mean((1, 2, 3)) / 255


def told_by(patterns: list[tuple[bool, ...]]) -> tuple[list[str], Told]:
    """Prompts and the reward under which, at threshold 0, each row's drafts stand as its pattern says."""
    prompts = ["".join("k" if kept else "r" for kept in row) for row in patterns]
    return prompts, Told(dict(zip(prompts, ([2.0 * kept - 1 for kept in row] for row in patterns), strict=True)))

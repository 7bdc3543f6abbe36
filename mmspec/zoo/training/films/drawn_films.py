"""Videos that the zoo's target draws, kept with what they were drawn from: what its drafter learns.

Both are handed the same noise for a block, of which the target's flow makes one block. Between noise and block the drafter
is trained on straight paths, as rectified flows are ("Flow Straight and Fast: Learning to Generate and Transfer Data with
Rectified Flow"), so that one or two steps end close to where the target's eight do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.core.keys import Keys
from mmspec.video.generation.noise import KeyedBlockNoise
from mmspec.video.pipeline import BlockVideoPipeline

from ...files.fixed_sets import Made, fingerprint, kept
from ...world.moving import sample_moving
from ...world.moving_prompts import moving_prompt
from ..bars import bars
from ..turns import turn_of
from .clip_sets import BLOCKS, CUT, PLAN, TOLD

FIRST_SEED = (7 << 28) + (2 << 26) + (1 << 25)
SWITCHED = 4  # every fourth member is asked for something else from block CUT on
_CHUNK, _BATCH = 256, 32


@dataclass(frozen=True, slots=True)
class FilmSet:
    """latents: float16 [N, C, F, 8, 8] of the members of the scenes from seed `first` on."""

    latents: Tensor
    first: int

    def __len__(self) -> int:
        return len(self.latents)

    def batch(self, turn: int, size: int) -> tuple[list[int], Tensor]:
        """The members of a turn and their latents float32 [size, C, F, 8, 8]."""
        taken = turn_of(len(self), size, turn)
        return taken, self.latents[taken].float()

    def noise(self, members: Sequence[int]) -> Tensor:
        """float32 [B, C, F, 8, 8], what the blocks of these members were drawn from."""
        own = noise_of(members, self.first)
        return torch.cat([own.at(block, 0, _shape(self.latents.shape[1])) for block in range(BLOCKS)], 2)

    def prompts(self, members: Sequence[int], seed: int) -> list[tuple[int, int, list[str]]]:
        """What was asked for, in words that follow from `seed`: texts from which block to which."""
        return [
            (0, CUT, [asked(self.first, member, 0, seed) for member in members]),
            (CUT, BLOCKS, [asked(self.first, member, CUT, seed) for member in members]),
        ]


def asked(first: int, member: int, block: int, seed: int) -> str:
    """The prompt that a block of a member has."""
    switched = block >= CUT and member % SWITCHED == SWITCHED - 1
    return moving_prompt(sample_moving(first + 2 * member + switched), seed, TOLD)


def noise_of(members: Sequence[int], first: int) -> KeyedBlockNoise:
    """Of these members; the noise of one does not depend on which others are asked for."""
    return KeyedBlockNoise(Keys.of([first + 2 * member for member in members], len(members)))


def film_set(target: BlockVideoPipeline, work: Path, count: int, first: int = FIRST_SEED) -> FilmSet:
    """The first members of a set, which lie in `work/video_films_SEED` and are drawn where they are not."""
    with bars() as progress:
        bar = progress.add_task("films of the target", total=count, note="")
        made: Callable[[int], None] = lambda done: progress.update(bar, advance=done)  # noqa: E731
        mark = fingerprint(target.model.transformer, (target.model.sampler, first))
        make: Callable[[int, int], Made] = lambda start, size: _drawn(target, first, start, size)  # noqa: E731
        folder = work / f"video_films_{first}"
        found = kept(folder, "films", mark, count, make, chunk=_CHUNK, batch=_BATCH, on_made=made)
    return FilmSet(found["latents"], first)


def _drawn(target: BlockVideoPipeline, first: int, start: int, size: int) -> Made:
    members = range(start, start + size)
    texts = {block: target.encoder([asked(first, member, block, member) for member in members]) for block in (0, CUT)}
    state = target.model.open(texts[0], noise_of(members, first), _shape(target.model.channels)[2:])
    film: list[Tensor] = []
    for block in range(BLOCKS):
        if block == CUT:
            state.switch(texts[CUT], CUT)
        film.append(state.generate(film))
    return {"latents": torch.cat(film, 2).half()}


def _shape(channels: int) -> tuple[int, int, int, int]:
    return (channels, PLAN.size, 8, 8)

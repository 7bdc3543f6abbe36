"""Noise belongs to a block and a draw: nothing that is decided moves it."""

from __future__ import annotations

import pytest
import torch

from mmspec.core.round.keys import Keys, Purpose
from mmspec.video import FewStep, GivenBlockNoise, KeyedBlockNoise
from tests.video.tiny import GRID, opened, text, video

SHAPE = (3, 2, 24, 24)


def test_it_is_the_same_in_every_round_and_for_everyone_who_asks() -> None:
    keys = Keys.of(4, 2)
    first, again = KeyedBlockNoise(keys).at(3, 1, SHAPE), KeyedBlockNoise(Keys.of(4, 2))
    keys.round = 17
    assert torch.equal(KeyedBlockNoise(keys).at(3, 1, SHAPE), first) and torch.equal(again.at(3, 1, SHAPE), first)


def test_blocks_draws_and_rows_have_streams_of_their_own() -> None:
    keys = Keys.of(4, 2)
    source = KeyedBlockNoise(keys)
    streams = torch.cat([source.at(block, draw, SHAPE).flatten(1) for block in range(4) for draw in range(4)])
    other = keys.normal(Purpose.DRAFT, *SHAPE).flatten(1)  # of the rules and drafters of the same request
    together = torch.corrcoef(torch.cat((streams, other)))
    assert (together - torch.eye(len(together))).abs().max() < 0.1
    assert abs(streams.mean()) < 0.02 and abs(streams.std() - 1) < 0.02


def test_a_block_drawn_again_has_the_noise_it_would_have_had_alone() -> None:
    class Listening(KeyedBlockNoise):
        def at(self, block, draw, shape):  # noqa: ANN001, ANN202
            asked.append((block, draw))
            return KeyedBlockNoise.at(self, block, draw, shape)

    asked: list[tuple[int, int]] = []
    sampler = FewStep()
    state = video(sampler=sampler).open(text(), Listening(Keys.of(0, 1)), GRID)
    film = []
    for _ in range(2):
        state.generate(film)  # drawn, and drawn again
        film.append(state.generate(film))
    assert asked == [(block, draw) for block in (0, 0, 1, 1) for draw in range(4)]
    plain, alone = opened(sampler=sampler), []
    for _ in range(2):
        alone.append(plain.generate(alone))
    assert all(map(torch.equal, film, alone))


def test_missing_and_mismatched_noise_is_refused() -> None:
    given = GivenBlockNoise([torch.zeros(1, *SHAPE)], [[torch.zeros(1, *SHAPE)]])
    assert given.at(0, 1, SHAPE).shape == (1, *SHAPE)
    for block, draw, shape in ((1, 0, SHAPE), (0, 2, SHAPE), (0, 0, (3, 3, 24, 24))):
        with pytest.raises(ValueError, match="noise: expected 1 x"):
            given.at(block, draw, shape)
    with pytest.raises(ValueError, match="draw: expected 0..1023"):
        KeyedBlockNoise(Keys.of(0, 1)).at(0, 1024, SHAPE)
    with pytest.raises(ValueError, match="noise: expected 1 rows, as many as prompts, got 2"):
        video().open(text(), KeyedBlockNoise(Keys.of(0, 2)), GRID)

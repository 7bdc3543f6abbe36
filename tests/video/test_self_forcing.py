"""Whole videos as Self-Forcing's procedure makes them: same blocks, same counters, same keys."""

from __future__ import annotations

import pytest
import torch

from mmspec.video import BlockPlan, Cached, FewStep, GivenBlockNoise, KeyedBlockNoise
from mmspec.video.wan.video import CachedState
from tests.video.self_forcing import pipeline
from tests.video.tiny import GRID, SIZES, apart, counters, noise, text, video, wan

BLOCKS = 7
# window in frames, sinks, plan; windows that blocks do not divide, first blocks of another size
CASES = [
    (None, 0, BlockPlan(2)),
    (4, 0, BlockPlan(2)),
    (4, 1, BlockPlan(2)),
    (5, 1, BlockPlan(2)),
    (7, 3, BlockPlan(3)),
    (6, 2, BlockPlan(3, first=1)),
]


def drawn(source: KeyedBlockNoise, plan: BlockPlan, steps: int) -> tuple[list, list]:
    shapes = [(SIZES.in_channels, plan.frames(b), *GRID) for b in range(BLOCKS)]
    first = [source.at(block, 0, shape) for block, shape in enumerate(shapes)]
    return first, [[source.at(b, i, shape) for i in range(1, steps)] for b, shape in enumerate(shapes)]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(("window", "sinks", "plan"), CASES)
@pytest.mark.parametrize("synchronised", ("lazy", "eager"))
@torch.no_grad()
def test_a_video_is_the_procedures(window: int | None, sinks: int, plan: BlockPlan, synchronised: str) -> None:
    first, fresh = drawn(noise(), plan, 4)
    wanted, cache = pipeline(wan(), text(), first, fresh, plan, window, sinks)
    model = video(Cached(window, sinks), plan=plan, sampler=FewStep())
    state = model.open(text(), GivenBlockNoise(first, fresh), GRID)
    film = []
    for block in wanted:
        film.append(state.generate(film))
        assert apart(film[-1], block) < 1e-5
        if synchronised == "eager":
            state.absorb(film)
    state.absorb(film)
    assert state.passes == 5 * BLOCKS and state.context_passes == BLOCKS
    for layer, held in cache.layers.items():
        assert counters(state.cache, cache.tokens) == [held["global"], held["local"]]
        for ours, which in zip(state.cache.layer(layer), "kv", strict=True):
            assert apart(ours, held[which][:, :, : held["local"]]) < 1e-5


@torch.no_grad()
def test_noise_from_the_seed_is_noise_that_is_given() -> None:
    first, fresh = drawn(noise(5), BlockPlan(2), 4)
    model, films = video(sampler=FewStep()), []
    for source in (noise(5), GivenBlockNoise(first, fresh)):
        state, film = model.open(text(), source, GRID), []
        for _ in range(3):
            film.append(state.generate(film))
        films.append(film)
    assert all(map(torch.equal, *films))


class NoCleanPass(CachedState):
    def _keep(self, latents, sizes, block, cache) -> None:  # noqa: ANN001
        time = self._time(500.0, latents.shape[2])
        self.model.transformer(latents, time, self._prompt(block), cache, sizes)
        cache.commit()


def at_zero(state: CachedState) -> None:
    state.cache.__class__ = type("AtZero", (type(state.cache),), {"frames": property(lambda self: 0)})


def twice(state: CachedState) -> None:
    own = type(state.cache)._seen

    def seen(self, end):  # noqa: ANN001, ANN202
        over = 0 if self.window is None else 2 * max(0, end - self.window)
        return own(self, end) if not over else [*range(self.sinks), *range(self.sinks + over, end)]

    state.cache.__class__ = type("Twice", (type(state.cache),), {"_seen": seen})


def no_sinks(state: CachedState) -> None:
    state.cache.sinks = 0


def unclean(state: CachedState) -> None:
    state.__class__ = NoCleanPass


@pytest.mark.parametrize("mutant", (unclean, at_zero, twice, no_sinks))
@torch.no_grad()
def test_deviations_from_the_procedure_are_detected(mutant) -> None:  # noqa: ANN001
    plan = BlockPlan(2)
    first, fresh = drawn(noise(), plan, 4)
    wanted, _ = pipeline(wan(), text(), first, fresh, plan, 6, 1)
    state = video(Cached(6, 1), sampler=FewStep()).open(text(), GivenBlockNoise(first, fresh), GRID)
    mutant(state)
    film = []
    for _ in wanted:
        film.append(state.generate(film))
    assert max(map(apart, film, wanted)) > 1e-3

"""Whatever rows accept and reject side by side, every block is what its model draws from nothing."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from mmspec.core.round.keys import Keys
from mmspec.video import Cached, KeyedBlockNoise, Rebuilt
from mmspec.video.decoding.request import VideoRowState
from mmspec.video.decoding.sdvg import SDVGState
from tests.video.decoding.tiny import drafter, encode, pipeline, sdvg, told_by, vae
from tests.video.tiny import GRID, apart, video

# the target's context, the drafter's, and the settings
WAYS = {
    "lazy": (Cached(), Cached(), {}),
    "eager": (Cached(), Cached(), {"sync": "eager"}),
    "masked": (Cached(at_once=None), Cached(), {}),
    "optimistic": (Cached(), Cached(), {"optimistic": True}),
    "rolling": (Cached(5, 1), Cached(5, 1), {}),
    "rolling eager, optimistic": (Cached(5, 1), Cached(5, 1), {"sync": "eager", "optimistic": True}),
    "rolling in the window": (Cached(5, 1, None, "window"), Cached(5, 1, 1, "window"), {"optimistic": True}),
    "rebuilt": (Rebuilt(3), Rebuilt(3), {"optimistic": True}),
    "rebuilt from pixels": (Rebuilt(3, vae()), Rebuilt(3, vae()), {"optimistic": True}),
    "rebuilt instead of read": (Cached(), Cached(), {"sync": Rebuilt(3)}),
}
PATTERNS = list(product((True, False), repeat=3))


def routed(way: str, rounds: int):  # noqa: ANN201
    context, own, how = WAYS[way]
    prompts, reward = told_by(PATTERNS)
    decoding = sdvg(reward, drafter=drafter(own), **how)
    run = pipeline(context, blocks=rounds + 1).start(prompts, decoding=decoding, seed=0)
    for _ in range(rounds):
        run.step()
    return run, prompts, decoding.target(video(context)), drafter(own)


def fresh(model: object, prompt: str, row: int):  # noqa: ANN201
    seeds = Keys.of(0, len(PATTERNS)).seeds[row : row + 1]
    return model.open(encode([prompt]), KeyedBlockNoise(Keys(seeds)), GRID)


@pytest.mark.default_cells("lazy", "rebuilt instead of read", "rolling eager, optimistic")
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_every_block_is_its_models_own_from_nothing(way: str) -> None:
    run, prompts, large, small = routed(way, 4)
    assert [row[1:] for row in zip(*run.stats.accepted, strict=True)] == PATTERNS
    for number, (row, prompt, pattern) in enumerate(zip(run.target.rows, prompts, PATTERNS, strict=True)):
        for block, kept in enumerate((False, *pattern)):
            other = fresh(small if kept else large, prompt, number).generate(row.committed[:block])
            assert apart(row.committed[block], other) < 1e-5, (pattern, block)
        held = run.state.states[number]
        for state, model in ((row.state, large), (held, small)):  # and so is the next one, whoever is to draw it
            assert apart(state.generate(row.committed), fresh(model, prompt, number).generate(row.committed)) < 1e-5, (
                pattern
            )
        whole, place = vae().decode(torch.cat(row.committed, 2))
        shown = ((whole[0].transpose(0, 1) + 1) * 127.5).round()
        assert (torch.cat(row.frames).float() - shown).abs().max() <= 1
        for entry, other in zip(row.vae_state.entries, place.entries, strict=True):
            assert not isinstance(entry, torch.Tensor) or apart(entry, other) < 1e-4


@pytest.mark.parametrize("optimistic", (False, True))
@torch.no_grad()
def test_a_rejected_draft_leaves_no_trace(optimistic: bool) -> None:
    """Bit for bit: the drafter's cache, the place in the autoencoder and the target are those of a film without drafts."""
    rejected, plain = [(False,) * 3], pipeline(blocks=5).start(["rrr"], seed=[7])
    prompts, reward = told_by(rejected)
    run = pipeline(blocks=5).start(prompts, seed=[7], decoding=sdvg(reward, optimistic=optimistic))
    reader = fresh(drafter(), "rrr", 0)
    for _ in range(4):
        run.step(), plain.step()
        row, other = run.target.rows[0], plain.target.rows[0]
        assert all(map(torch.equal, row.committed, other.committed)) and len(row.committed) == len(other.committed)
        assert not row.slots and not row.decoded
        for entry, wanted in zip(row.vae_state.entries, other.vae_state.entries, strict=True):
            assert torch.equal(entry, wanted) if isinstance(entry, torch.Tensor) else entry == wanted
    state = run.state.states[0]
    for each in (state, reader):
        each.absorb(row.committed)
    assert state.watermark == reader.watermark == 4 and state.cache.staged == 0
    for layer in range(2):
        assert all(map(torch.equal, state.cache.layer(layer), reader.cache.layer(layer)))


class NeverRestored(SDVGState):
    def observe(self, target, draft, evidence, verdict) -> None:  # noqa: ANN001
        self.ahead = [None] * target.batch


def keeps_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter goes on from what it drafted."""
    monkeypatch.setattr("mmspec.video.decoding.sdvg.SDVGState", NeverRestored)


def moves_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft moves the place in the autoencoder, kept or not."""
    take = VideoRowState.commit

    def taken(self: VideoRowState, handle: int, kept: bool) -> None:
        drafts = [one.after for key, one in self.decoded.items() if key % 2]
        take(self, handle, kept)
        self.vae_state = drafts[-1] if drafts else self.vae_state

    monkeypatch.setattr(VideoRowState, "commit", taken)


def draws_with_other_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter's noise is not the target's."""
    monkeypatch.setattr("mmspec.video.decoding.sdvg.SDVG.model", property(lambda self: Other(self.drafter)))


class Other:
    def __init__(self, model: object):
        self.model = model

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def open(self, text, noise, size):  # noqa: ANN001, ANN201
        return self.model.open(text, KeyedBlockNoise(noise.keys.child(1)), size)


@pytest.mark.parametrize("mutant", (keeps_reading, moves_the_place, draws_with_other_noise))
def test_violations_of_the_discipline_are_detected(mutant, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN001
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        test_every_block_is_its_models_own_from_nothing("optimistic")


@torch.no_grad()
def test_a_failed_draft_ahead_is_rolled_back() -> None:
    prompts, reward = told_by([(False,) * 3])
    run = pipeline(blocks=4).start(prompts, seed=[7], decoding=sdvg(reward, optimistic=True))
    run.step()
    state, generate = run.state.states[0], run.state.states[0].generate

    def interrupted(film):  # noqa: ANN001, ANN202
        if len(film) == 2:
            generate(film)
            raise KeyboardInterrupt
        return generate(film)

    state.generate = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.step()
    del state.generate
    while run.step():
        pass
    plain = pipeline(blocks=4)(["rrr"], seed=[7])
    assert torch.equal(torch.cat(run.target.rows[0].committed, 2)[0], plain.latents[0])


def test_a_lazy_target_reads_no_block_that_it_draws_nothing_behind() -> None:
    run, *_ = routed("lazy", 4)
    last = [max((block for block, kept in enumerate((False, *row)) if not kept), default=0) for row in PATTERNS]
    assert [row.state.context_passes for row in run.target.rows] == last

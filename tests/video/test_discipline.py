"""Whatever was accepted or drawn again, the next block is what a computation from nothing gives."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from mmspec.video import BlockPlan, Cached, KeyedBlockNoise, Rebuilt
from mmspec.video.chunk_cache import ChunkCache
from tests.video.decoding.tiny import vae
from tests.video.tiny import GRID, apart, counters, film, noise, opened, text, video, wan
from tests.video.vae.plain import plain_decode, plain_encode

# how a target keeps up: its context, and whether it reads every block at once
WAYS = {
    "lazy": (Cached(), False),
    "eager": (Cached(), True),
    "masked": (Cached(at_once=None), False),
    "pairs": (Cached(at_once=2), False),
    "rolling lazy": (Cached(5, 1), False),
    "rolling eager": (Cached(5, 1), True),
    "rolling masked": (Cached(5, 1, at_once=None), False),
    "rolling in the window": (Cached(5, 1, positions="window"), False),
    "rolling in the window, masked": (Cached(5, 1, None, "window"), True),
    "rebuilt": (Rebuilt(3), False),
    "rebuilt from pixels": (Rebuilt(3, vae()), False),
    "rebuilt from pixels, eager": (Rebuilt(3, vae()), True),
}
PATTERNS = list(product((True, False), repeat=3))


def routed(context: object, eager: bool, pattern: tuple[bool, ...]) -> tuple[list, object, object]:
    """A film whose first block is the target's and whose others are kept or drawn again; and both states."""
    target = opened(context)
    drafter = video(context if isinstance(context, Rebuilt) else Cached(), wan(1)).open(text(), noise(), GRID)
    committed = [target.generate([])]
    for kept in pattern:
        if eager:
            target.absorb(committed)
        draft = drafter.generate(committed)
        committed.append(draft if kept else target.generate(committed))
    return committed, target, drafter


@pytest.mark.default_cells("lazy", "rolling eager", "rebuilt", "rolling in the window, masked", "pairs")
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_after_every_pattern_the_next_block_is_that_of_a_new_request(way: str) -> None:
    context, eager = WAYS[way]
    for pattern in PATTERNS:
        committed, target, drafter = routed(context, eager, pattern)
        for state, model in ((target, wan()), (drafter, wan(1))):
            fresh = video(state.context, model).open(text(), noise(), GRID)
            assert apart(state.generate(committed), fresh.generate(committed)) < 1e-5, pattern
            assert state.watermark == (0 if way == "rebuilt" else len(committed))


@torch.no_grad()
def test_without_a_window_states_match_passes_over_the_whole_video() -> None:
    committed, target, _ = routed(Cached(), False, (True, False, True, True))
    model, sampler, block = wan(), target.model.sampler, len(committed)
    context, prompt, source = torch.cat(committed, 2), wan().read(text()), noise()
    frames, sizes = context.shape[2], (2,) * (block + 1)

    def velocity(x: torch.Tensor, timestep: float, until: float) -> torch.Tensor:
        time = torch.cat((torch.zeros(1, frames), torch.full((1, 2), timestep)), 1)
        return model(torch.cat((context, x), 2), time, prompt, sizes=sizes)[:, :, frames:]  # no cache at all

    wanted = sampler.draw(velocity, lambda draw: source.at(block, draw, (3, 2, *GRID)))
    assert apart(target.generate(committed), wanted) < 1e-5


@torch.no_grad()
def test_lazy_eager_and_masked_reading_agree_and_a_block_read_differently_shows() -> None:
    committed = film(6)
    for window in ({}, {"window": 5, "sinks": 1}):
        blocks = [opened(Cached(**window, at_once=most)).generate(committed) for most in (1, 2, None)]
        eager = opened(Cached(**window))
        for count in range(1, 7):
            eager.absorb(committed[:count])
        assert max(apart(eager.generate(committed), block) for block in blocks) < 1e-5
    other = [*committed[:-1], film(1, seed=9)[0]]
    assert apart(opened().generate(other), opened().generate(committed)) > 1e-3


@pytest.mark.parametrize("context", (Cached(), Cached(5, 1)))
@torch.no_grad()
def test_a_draft_that_is_not_kept_leaves_no_trace(context: Cached) -> None:
    committed = film(4)
    state, clean = opened(context), opened(context)
    for one in (state, clean):
        one.absorb(committed)
    for _ in range(2):
        state.generate(committed)
    assert state.cache.staged == 0
    for layer in range(2):
        assert all(map(torch.equal, state.cache.layer(layer), clean.cache.layer(layer)))
    assert torch.equal(state.generate(committed), clean.generate(committed))


@pytest.mark.parametrize("context", (Cached(), Cached(5, 1), Rebuilt(), Rebuilt(3, vae())))
@torch.no_grad()
def test_a_draft_on_top_of_a_draft_is_rolled_back(context: object) -> None:
    committed = film(3)
    state, clean = opened(context), opened(context)
    draft, before = state.generate(committed), state.snapshot()
    state.generate([*committed, draft])  # drafts on while the draft is judged
    state.restore(before)
    other = [*committed, film(4, seed=3)[-1]]
    assert torch.equal(state.generate(other), clean.generate(other))


@torch.no_grad()
def test_a_video_shorter_than_the_read_blocks_is_refused() -> None:
    state = opened()
    state.absorb(film(3))
    with pytest.raises(ValueError, match="video: expected at least the 3 blocks that were read, got 2"):
        state.generate(film(2))


def failing(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@torch.no_grad()
def test_an_interrupted_pass_leaves_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    committed, state = film(2), opened()
    wanted = opened().generate(committed)
    state.absorb(committed[:1])
    with monkeypatch.context() as broken:
        broken.setattr(ChunkCache, "commit", failing)
        with pytest.raises(KeyboardInterrupt):
            state.generate(committed)
    with monkeypatch.context() as broken:
        broken.setattr(KeyedBlockNoise, "at", failing)
        with pytest.raises(KeyboardInterrupt):
            state.generate(committed)
    assert torch.equal(state.generate(committed), wanted)


def bytes_held(cache: ChunkCache) -> int:
    kept = cache.snapshot().kept
    stores = {x.untyped_storage().data_ptr(): x.untyped_storage() for f in kept for x in (*f.keys, *f.values)}
    return sum(store.nbytes() for store in stores.values())


@pytest.mark.parametrize("at_once", (1, None))
@torch.no_grad()
def test_forty_blocks_need_the_memory_and_the_attention_of_few(at_once: int | None) -> None:
    committed, state = film(40, plan=BlockPlan(2)), opened(Cached(6, 1, at_once))
    held, frame = [], 2 * 2 * 4 * 24 * 4  # keys and values, layers, tokens, width, bytes
    for count in range(1, 41):
        state.absorb(committed[:count])
        held.append(bytes_held(state.cache))
        assert counters(state.cache, 4) == [8 * count, 4 * min(2 * count, 6)]
    assert len(set(held[4:])) <= 2 and max(held) <= (6 + 2) * frame
    late = opened(Cached(6, 1, at_once))
    late.absorb(committed)
    assert bytes_held(late.cache) <= max(held)
    assert apart(late.generate(committed), state.generate(committed)) < 1e-5


@pytest.mark.parametrize("context", (Cached(6, 1), Rebuilt()))
@torch.no_grad()
def test_a_new_prompt_holds_from_its_block_on_and_for_no_block_before(context: object) -> None:
    committed = film(20)
    plain, eager, lazy = opened(context), opened(context), opened(context)
    eager.absorb(committed)
    for state in (eager, lazy):
        state.switch(text(1), 20)
    drawn = eager.generate(committed)
    assert apart(drawn, lazy.generate(committed)) < 1e-5
    assert apart(drawn, plain.generate(committed)) > 1e-3
    if isinstance(context, Rebuilt):
        fresh = video(context).open(text(1), noise(), GRID)
        assert apart(drawn, fresh.generate(committed)) < 1e-5
    else:
        for layer in range(2):  # what was committed before was read under the old prompt, whoever reads it when
            assert max(map(apart, lazy.cache.layer(layer), plain.cache.layer(layer))) < 1e-5
    with pytest.raises(ValueError, match="block: expected 20 or later"):
        eager.switch(text(2), 19)
    eager.switch(text(), 20)  # changed again before anything was drawn
    assert apart(eager.generate(committed), plain.generate(committed)) < 1e-5


@torch.no_grad()
def test_all_that_is_kept_can_be_read_again_under_a_new_prompt() -> None:
    committed, context = film(5), Cached(recache=True)
    state, fresh = opened(context), video().open(text(1), noise(), GRID)
    state.absorb(committed[:4])
    state.switch(text(1), 4)
    for count in (4, 5):
        assert apart(state.generate(committed[:count]), fresh.generate(committed[:count])) < 1e-5
    assert apart(state.generate(committed), opened().generate(committed)) > 1e-3


@pytest.mark.parametrize(
    "context", (Cached(recache=True), Cached(6, 1, recache=True), Cached(5, 2, None, "window", True))
)
@torch.no_grad()
def test_reread_context_does_not_depend_on_the_history(context: Cached) -> None:
    """Lazy, eager, with drafts taken back across the change, and with a prompt that is changed again before its block."""
    committed = film(7)
    states = {name: opened(context) for name in ("lazy", "eager", "drafting", "again")}
    for name, state in states.items():
        state.switch(text(2 if name == "again" else 1), 4)
    for count in range(1, 5):
        states["eager"].absorb(committed[:count])
    states["again"].absorb(committed[:4])
    states["again"].switch(text(1), 4)
    before = [states["drafting"].absorb(committed[:3]), states["drafting"].snapshot()][1]
    states["drafting"].generate([*committed[:3], film(1, seed=8)[0]])  # drafts on over the change
    states["drafting"].restore(before)
    for count in (4, 7):
        drawn = [state.generate(committed[:count]) for state in states.values()]
        assert max(apart(sample, drawn[0]) for sample in drawn) < 1e-5
    kept = opened(Cached(context.window, context.sinks, None, context.positions))
    kept.switch(text(1), 4)
    assert apart(kept.generate(committed), drawn[0]) > 1e-3


@torch.no_grad()
def test_rereading_costs_a_window_for_any_video_length() -> None:
    passes = []
    for blocks in (10, 20, 40):
        committed, state = film(blocks), opened(Cached(6, 1, recache=True))
        state.absorb(committed)
        state.switch(text(1), blocks)
        before = state.passes
        state.generate(committed)
        passes.append(state.passes - before - 2)
        assert bytes_held(state.cache) <= (6 + 2) * 2 * 2 * 4 * 24 * 4
    assert len(set(passes)) == 1 and passes[0] <= 4  # the sink, a half block and two whole ones


@torch.no_grad()
def test_a_rebuilt_context_is_the_first_latent_and_the_last_latents() -> None:
    committed = film(4)
    state, latents = opened(Rebuilt(4)), torch.cat(committed, 2)
    for count, frames in ((1, [0, 1]), (2, [0, 1, 2, 3]), (3, [0, 3, 4, 5]), (4, [0, 5, 6, 7])):
        assert torch.equal(state.window(committed[:count]), latents[:, :, frames])
    only = opened(Rebuilt(1))
    assert torch.equal(only.window(committed), latents[:, :, :1])


@pytest.mark.parametrize("plan", (BlockPlan(2), BlockPlan(3), BlockPlan(2, first=1)), ids=str)
@torch.no_grad()
def test_a_context_may_begin_with_its_oldest_pixel_frame_encoded_by_itself(plan: BlockPlan) -> None:
    """Of a ring of 1 + (3 - 1) x 2 pixel frames, as soon as latents have slid out; the film's own first latent until then."""
    committed, model = film(5, plan=plan), vae().model
    state = video(Rebuilt(3, vae()), plan=plan).open(text(), noise(), GRID)
    for count in range(1, 6):
        latents, found = torch.cat(committed[:count], 2), state.window(committed[:count])
        if latents.shape[2] <= 3:
            assert torch.equal(found, latents)
            continue
        oldest = plain_decode(model, latents)[:, :, -(1 + 2 * 2)][:, :, None]
        assert apart(found[:, :, :1], plain_encode(model, oldest)) < 1e-4
        assert torch.equal(found[:, :, 1:], latents[:, :, -2:])
        assert apart(found[:, :, :1], latents[:, :, :1]) > 1e-2
    assert state._shown.last.shape[2] == 5 and state.watermark == 5
    with pytest.raises(ValueError, match="video: expected at least the 5 blocks that were read, got 3"):
        state.window(committed[:3])
    with pytest.raises(ValueError, match="vae: expected latents of 4 channels as the model's, got 3"):
        video(Rebuilt(3, vae()), wan(2, in_channels=4, out_channels=4)).open(text(), noise(), GRID)


@torch.no_grad()
def test_rows_do_not_meet() -> None:
    both = torch.cat((text(), text(1)))
    seeds = noise(7, rows=2)
    pair = video().open(both, seeds, GRID)
    made = []
    for _ in range(3):
        made.append(pair.generate(made))
    for row in range(2):
        alone = KeyedBlockNoise(type(seeds.keys)(seeds.keys.seeds[row : row + 1]))
        state, one = video().open(both[row : row + 1], alone, GRID), []
        for block in made:
            one.append(state.generate(one))
            assert apart(one[-1], block[row : row + 1]) < 1e-5

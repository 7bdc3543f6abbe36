"""SDVG through the pipeline: the ends of its threshold, rows apart, drafts ahead, what a call reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmspec.core.round.keys import Keys
from mmspec.video import BlockWork, Cached, KeyedBlockNoise, Random, Rebuilt, Strided
from mmspec.video.chunk_cache import ChunkCache
from tests.video.decoding.tiny import Told, bright, drafter, encode, pipeline, sdvg, told_by, vae
from tests.video.tiny import GRID, FewStep
from tests.video.vae.tiny import bytes_of

PROMPTS = ["a", "bb", "ccc"]


def same(one, other) -> bool:  # noqa: ANN001
    return all(map(torch.equal, one.latents, other.latents)) and all(map(np.array_equal, one.videos, other.videos))


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("how", ({}, {"sync": "eager"}, {"optimistic": True}), ids=str)
@pytest.mark.parametrize("context", (Cached(), Cached(5, 1), Rebuilt(3)), ids=str)
def test_infinity_is_the_target_alone_bit_for_bit(context: object, how: dict) -> None:
    pipe = pipeline(context)
    plain, routed = pipe(PROMPTS, seed=3), pipe(PROMPTS, seed=3, decoding=sdvg(bright, math.inf, **how))
    assert same(plain, routed) and routed.stats.exact and plain.stats.exact
    assert routed.stats.acceptance == [0.0] * 5 and routed.stats.drafter_passes > 0


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("how", ({}, {"sync": "eager", "optimistic": True}), ids=str)
@pytest.mark.parametrize(
    "context",
    (Cached(5, 1, positions="window"), Cached(5, 1, recache=True), Rebuilt(3, vae())),
    ids=("window", "recache", "pixels"),
)
def test_infinity_is_the_target_alone_over_a_change_of_prompts(context: object, how: dict) -> None:
    pipe, switch = pipeline(context), {2: "another", 4: "a third"}
    plain = pipe("a", seed=3, switch=switch)
    routed = pipe("a", seed=3, switch=switch, decoding=sdvg(bright, math.inf, drafter=drafter(context), **how))
    assert same(plain, routed) and routed.stats.exact and routed.stats.drafter_passes > 0
    kept = pipe("a", seed=3, switch=switch, decoding=sdvg(bright, -math.inf, drafter=drafter(context), **how))
    assert kept.stats.target_blocks == [3] and not same(plain, kept)  # each prompt's first block is the target's


def test_auto_is_the_target_alone() -> None:
    pipe = pipeline(blocks=2)
    plain, auto = pipe(PROMPTS, seed=3), pipe(PROMPTS, seed=3, decoding="auto")
    assert same(plain, auto) and auto.stats.exact and auto.stats.drafter == "none"


def test_a_target_with_another_context_is_not_the_target_alone() -> None:
    pipe, rebuilt = pipeline(), pipeline(Rebuilt(3))
    routed = pipe(PROMPTS, seed=3, decoding=sdvg(bright, math.inf, sync=Rebuilt(3)))
    assert not routed.stats.exact and "relaxed" in routed.stats.rule
    assert same(routed, rebuilt(PROMPTS, seed=3)) and not same(routed, pipe(PROMPTS, seed=3))
    assert rebuilt(PROMPTS, seed=3, decoding=sdvg(bright, math.inf, sync=Rebuilt(3))).stats.exact


@torch.no_grad()
def test_minus_infinity_is_the_drafter_behind_the_first_block_bit_for_bit() -> None:
    pipe = pipeline()
    out = pipe(PROMPTS, seed=[4, 5, 6], decoding=sdvg(bright, -math.inf))
    for row, prompt in enumerate(PROMPTS):
        source = KeyedBlockNoise(Keys.of([4 + row], 1))
        film = [pipe.model.open(encode([prompt]), source, GRID).generate([])]
        state = drafter().open(encode([prompt]), source, GRID)
        while len(film) < 5:
            film.append(state.generate(film))
        assert torch.equal(torch.cat(film, 2)[0], out.latents[row])
    assert not out.stats.exact and out.stats.acceptance == [0, 1, 1, 1, 1] and out.stats.target_blocks == [1] * 3
    assert out.stats.accept_length == 5 and out.stats.target_passes == 1 and out.stats.accepted_share == 1


def test_rows_do_not_depend_on_the_batch() -> None:
    pipe = pipeline()
    first = pipe(PROMPTS, seed=[1, 2, 4], decoding=sdvg(bright, -math.inf))
    scores = sorted(min(r.scores) for row in first.stats.records for r in row if r.drafted)
    for how in ({"threshold": scores[len(scores) // 2]}, {"router": Random(3)}):
        whole = pipe(PROMPTS, seed=[1, 2, 4], decoding=sdvg(bright, **how))
        assert len({tuple(r.kept for r in row) for row in whole.stats.records}) > 1  # they decide apart
        for row, prompt in enumerate(PROMPTS):
            alone = pipe(prompt, seed=[2**row], decoding=sdvg(bright, **how))
            assert torch.equal(alone.latents[0], whole.latents[row])
            assert np.array_equal(alone.videos[0], whole.videos[row])
            assert alone.stats.records[0] == whole.stats.records[row]


def test_requests_may_take_steps_in_turn() -> None:
    pipe = pipeline()
    wanted = [pipe(p, seed=0, decoding=sdvg(bright, 0.5)) for p in PROMPTS]
    runs = [pipe.start(p, seed=0, decoding=sdvg(bright, 0.5)) for p in PROMPTS]
    while any([run.step() for run in runs if not run.target.done]):
        pass
    assert all(same(pipe.output(run), out) for run, out in zip(runs, wanted, strict=True))


def test_drafting_ahead_changes_nothing_but_the_passes() -> None:
    patterns = [(True, False, True, True), (False, True, True, False), (True,) * 4]
    outs = []
    for ahead in (False, True):
        prompts, reward = told_by(patterns)
        outs.append(pipeline()(prompts, seed=0, decoding=sdvg(reward, optimistic=ahead)))
    plain, ahead = outs
    assert same(plain, ahead) and plain.stats.records == ahead.stats.records
    assert ahead.stats.drafter_passes > plain.stats.drafter_passes
    alone = [pipeline()("kkkk", seed=0, decoding=sdvg(bright, -math.inf, optimistic=a)).stats for a in (False, True)]
    assert alone[0].drafter_passes == alone[1].drafter_passes  # where all stands, nothing was drafted in vain


@pytest.mark.parametrize("sync", ("lazy", "eager", Rebuilt(3)), ids=str)
def test_the_counts_are_those_of_the_timing_model(sync: object) -> None:
    patterns = [(True, False, True, True), (False, True, True, True), (True,) * 4]
    prompts, reward = told_by(patterns)
    pipe = pipeline(sampler=FewStep((1000, 800, 500)))
    stats = pipe(prompts, seed=0, decoding=sdvg(reward, sync=sync)).stats  # the drafter takes two steps
    name = sync if isinstance(sync, str) else "rebuilt"
    works = [BlockWork.of((False, *row), (False, *(True,) * 4), name) for row in patterns]
    assert stats.target_forwards == sum(3 * work.redrawn + work.target_reads for work in works)
    assert stats.context_forwards == sum(work.target_reads for work in works)
    assert stats.drafter_passes == sum(2 * work.drafted + work.drafter_reads for work in works)
    assert stats.target_blocks == [work.redrawn for work in works]
    assert sum(r.scores is not None for row in stats.records for r in row) == sum(work.scored for work in works)


def test_a_call_reports_its_decisions() -> None:
    seen: list = []
    prompts, reward = told_by([(True, False), (False, False)])
    out = pipeline(blocks=3)(prompts, seed=0, decoding=sdvg(reward), listener=lambda *told: seen.append(told))
    assert [told[:2] for told in seen] == [(row, block) for block in range(3) for row in range(2)]
    for row, video in enumerate(out.videos):
        assert video.dtype == np.uint8 and video.shape == (11, 8, 8, 3) and video.std() > 0  # 3 frames, then 4 and 4
        assert np.array_equal(np.concatenate([told[2] for told in seen if told[0] == row]), video)
    stats = out.stats
    assert stats.accepted == [[0, 0], [1, 0], [0, 0]] and stats.acceptance == [0, 0.5, 0] and stats.emitted == [3, 3]
    assert stats.row_passes == 5 and stats.accept_length == 6 / 5 and stats.accepted_share == 0.25
    assert [[r.drafted for r in row] for row in stats.records] == [[False, True, True]] * 2
    assert stats.records[0][1].scores == [1.0] * 4 and stats.records[0][1].own_scores is None
    split = stats.split
    assert set(split) == {"draft", "target", "vae", "reward", "other"} and min(split.values()) > 0
    assert len(stats.block_s) == 3 and min(stats.block_s) <= stats.latency(50) <= stats.latency(95) <= max(
        stats.block_s
    )
    assert sum(split.values()) >= sum(stats.block_s) - 1e-3
    assert stats.to_dict()["split"] == split


def test_without_pixels_only_inspected_blocks_are_decoded() -> None:
    pipe = pipeline()
    shown = pipe(PROMPTS, seed=0, decoding=sdvg(bright, 0.5))
    blind = pipe(PROMPTS, seed=0, decoding=sdvg(bright, 0.5), pixels=False)
    assert all(map(torch.equal, shown.latents, blind.latents)) and blind.videos == [] and blind.stats.vae_s > 0
    for decoding in (None, sdvg(router=Strided(2))):
        out = pipe(PROMPTS, seed=0, decoding=decoding, pixels=False)
        assert out.stats.vae_s == 0 and out.stats.reward_s == 0


def test_a_block_that_is_the_targets_anyway_is_not_drafted() -> None:
    out = pipeline()(PROMPTS, seed=0, decoding=sdvg(router=Strided(3)))
    assert [[r.drafted for r in row] for row in out.stats.records] == [[False, True, False, True, False]] * 3
    assert all(r.kept == r.drafted for row in out.stats.records for r in row)
    drafted = sum(r.drafted for row in out.stats.records for r in row)
    last = max(b for b, r in enumerate(out.stats.records[0]) if r.drafted)
    assert out.stats.drafter_passes == 2 * drafted + 3 * last and out.stats.target_blocks == [3] * 3


def test_a_new_prompt_is_the_targets_from_its_first_block_and_is_scored_by_itself() -> None:
    pipe, heard = pipeline(), []

    def reward(frames, prompt):  # noqa: ANN001, ANN202
        heard.append(prompt)
        return torch.ones(len(frames))

    plain = pipe("a", seed=0, decoding=sdvg(reward))
    heard.clear()
    out = pipe("a", seed=0, decoding=sdvg(reward), switch={3: "another"})
    assert [r.kept for r in out.stats.records[0]] == [False, True, True, False, True]
    assert heard == ["a", "a", "another"]
    before = plain.latents[0].shape[1] // 5 * 3
    assert torch.equal(out.latents[0][:, :before], plain.latents[0][:, :before])
    assert not torch.equal(out.latents[0], plain.latents[0])
    switched = pipe("a", seed=0, switch={3: "another"})
    alone = pipe("a", seed=0, decoding=sdvg(reward, math.inf), switch={3: "another"})
    assert torch.equal(switched.latents[0], alone.latents[0]) and alone.stats.exact
    heard.clear()
    pipe("a long one", seed=0, decoding=sdvg(reward), switch={3: "another"}, reward_prompt={0: "short", 3: "brief"})
    assert heard == ["short", "short", "brief"]


def test_encoded_prompts_need_words_for_a_reward_only() -> None:
    pipe, states = pipeline(), encode(["a"])
    assert torch.equal(pipe(states, seed=0).latents[0], pipe("a", seed=0).latents[0])
    with pytest.raises(ValueError, match="reward_prompt: expected a text"):
        pipe(states, seed=0, decoding=sdvg(bright))
    told = pipe(states, seed=0, decoding=sdvg(bright, 0.5), reward_prompt="a")
    assert torch.equal(told.latents[0], pipe("a", seed=0, decoding=sdvg(bright, 0.5)).latents[0])


def test_a_mean_accepts_drafts_that_the_lowest_frame_rejects() -> None:
    def reward(frames, prompt):  # noqa: ANN001, ANN202
        return torch.tensor([-1.0] + [1.0] * (len(frames) - 1))

    least, mean = (pipeline()("a", seed=0, decoding=sdvg(reward, reduction=how)).stats for how in ("min", "mean"))
    assert least.acceptance == [0] * 5 and mean.acceptance == [0, 1, 1, 1, 1]


def test_forty_blocks_in_a_rolling_window_hold_no_more_than_few_and_a_new_prompt_holds_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, attended = ChunkCache.write, []

    def recorded(self, layer, key, value):  # noqa: ANN001, ANN202
        spans = write(self, layer, key, value)
        attended[-1] += sum((span.last - span.first) * span.keys.shape[2] for span in spans)
        return spans

    monkeypatch.setattr(ChunkCache, "write", recorded)
    pipe, pattern = pipeline(Cached(6, 1), blocks=40), [float(b % 3) - 0.5 for b in range(38)]
    decoding = sdvg(Told({"a": pattern[:19], "b": pattern[19:]}), drafter=drafter(Cached(6, 1)))
    run, held, passes = pipe.start("a", seed=0, decoding=decoding, switch={20: "b"}), [], []
    row = run.target.rows[0]
    while attended.append(0) or run.step():
        state = run.state.states[0]
        held.append(
            (bytes_of(row.vae_state), row.state.cache.kept, state.cache.kept, len(row.slots) + len(row.decoded))
        )
        passes.append(row.state.passes + state.passes)
    assert len(row.committed) == 40 and len(set(held[5:])) == 1 and held[-1][1:3] <= (6, 6) and held[-1][3] == 0
    third = [after - before for before, after in zip(passes[6::3], passes[9::3], strict=False)]
    assert max(third) - min(third) <= 3  # as many passes in the end as in the beginning
    work = [
        sum(attended[first : first + 3]) for first in range(6, 36, 3)
    ]  # queries times keys, of the same three verdicts
    assert work[0] == work[-1] and max(work) <= 1.1 * min(work)  # one more block is redrawn where the prompt changes
    same = pipe.start("a", seed=0, decoding=sdvg(Told({"a": pattern}), drafter=drafter(Cached(6, 1))))
    for _ in range(21):
        same.step()
    assert all(map(torch.equal, row.committed[:20], same.target.rows[0].committed))
    assert not row.records[20].kept and not torch.equal(row.committed[20], same.target.rows[0].committed[20])

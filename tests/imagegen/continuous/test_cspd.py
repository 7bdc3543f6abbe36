"""Windows of drafted tokens end to end: what each algorithm keeps, and which settings are plain decoding."""

from __future__ import annotations

import pytest
import torch

from mmspec.imagegen.continuous.cspd import rules
from mmspec.imagegen.continuous.cspd.acceptance import Relaxation
from mmspec.imagegen.continuous.cspd.cspd_drafter import CSpD
from mmspec.imagegen.continuous.head_sampling.sampling import HeadSampling
from mmspec.imagegen.continuous.mar.pipeline import MARPipeline
from mmspec.imagegen.continuous.mar.transformer import MAR
from mmspec.imagegen.continuous.schedules.feature_cache import FeatureCachedModel, Lazy
from mmspec.imagegen.continuous.schedules.scheduled_steps import ScheduledSteps
from mmspec.imagegen.continuous.schedules.step_annealing import Annealing
from tests.imagegen.continuous.tiny import SIZES, redrawn, transformer

LABELS, SEEDS = [1, 4, 0], [5, 6, 7]

PUBLISHED = Relaxation(42.0, "published")


def pipeline(seed: int = 0, blur: float = 0.0) -> MARPipeline:
    """A target whose tokens are of the size of 1, or with blur a model like it."""
    model = redrawn(MAR(SIZES), seed, std=0.12)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(blur * torch.randn(value.shape, generator=generator))
    return MARPipeline(model, num_iter=4)


def other() -> MARPipeline:
    return pipeline(blur=0.01)


def run(pipe: MARPipeline, decoding: object = None, **how) -> object:
    how = {"seed": SEEDS, "num_iter": 8, "guidance_scale": 1.0, "pixels": False, **how}
    return pipe(LABELS, decoding=decoding, **how)


def near(one: torch.Tensor, same: torch.Tensor) -> None:
    torch.testing.assert_close(one, same, atol=2e-4, rtol=2e-4)


@pytest.fixture
def all_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ratio is 1: random heads have scales of their own, so no relaxation of distances alone lets all drafts stand."""
    monkeypatch.setattr(rules, "log_ratio", lambda value, *_: torch.zeros(value.shape[:-1]).double())


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("gamma", (1, 3, 20))
@pytest.mark.parametrize("how", [dict(), dict(guidance_scale=2.5), dict(temperature=0.5, num_iter=16)])
def test_tolerance_zero_is_plain_decoding_whatever_drafts(gamma: int, how: dict) -> None:
    pipe = pipeline()
    decoding = CSpD(other(), window="truncate", gamma=gamma, tolerance=0.0, prefill=0.0)
    out = run(pipe, decoding, **how)
    assert torch.equal(out.tokens, run(pipe, **how).tokens)
    assert out.stats.exact and sum(sum(filter(None, row)) for row in out.stats.accepted) == 0


def test_tolerance_zero_takes_drafts_that_are_the_targets_own() -> None:
    pipe = pipeline()
    out = run(pipe, CSpD(pipe, window="truncate", gamma=3, tolerance=0.0, prefill=0.0), guidance_scale=2.0)
    near(out.tokens, run(pipe, guidance_scale=2.0).tokens)
    assert sum(sum(filter(None, row)) for row in out.stats.accepted) > 0


def test_a_drafter_that_is_the_target_is_believed_to_the_end() -> None:
    pipe = pipeline()
    for scale in (1.0, 3.0):  # the linear schedule gives every position a scale of its own
        decoding = CSpD(pipe, window="truncate", gamma=3, tolerance=1e-2, prefill=0.0)
        out = run(pipe, decoding, guidance_scale=scale)
        near(out.tokens, run(pipe, guidance_scale=scale).tokens)
        steps = len(pipe.start(LABELS, num_iter=8).target.plan)
        assert out.stats.target_passes == 1 + -(-(steps - 1) // 3)
        assert out.stats.drafter_passes == steps - 1 and not out.stats.exact


@pytest.mark.parametrize("window", ("patch", "truncate"))
def test_a_draft_of_one_step_by_the_target_is_always_accepted(window: str) -> None:
    pipe = pipeline()
    out = run(pipe, CSpD(pipe, window=window, gamma=1, relaxation=1.0, prefill=0.0))
    near(out.tokens, run(pipe).tokens)
    assert all(sum(row) > 0 for row in out.stats.accepted[1:]) and "relaxed" in out.stats.rule


def test_patching_never_goes_back_and_truncating_does() -> None:
    pipe, steps = pipeline(), 8
    strict = Relaxation(1e-3)  # nothing stands
    patched = run(pipe, CSpD(other(), window="patch", gamma=3, relaxation=strict, prefill=0.0))
    assert patched.stats.target_passes == 1 + -(-(steps - 1) // 3)
    cut = run(pipe, CSpD(other(), window="truncate", gamma=3, relaxation=strict, prefill=0.0))
    assert cut.stats.target_passes == steps
    assert sum(map(sum, patched.stats.accepted)) == sum(map(sum, cut.stats.accepted)) == 0
    assert patched.stats.emitted == cut.stats.emitted == [16] * 3


@pytest.mark.parametrize("window", ("patch", "truncate"))
def test_an_accepted_window_is_committed_whole(window: str, all_stand: None) -> None:
    pipe = pipeline()
    out = run(pipe, CSpD(other(), window=window, gamma=3, prefill=0.0))
    assert out.stats.target_passes == 1 + -(-(8 - 1) // 3) and out.stats.drafter_passes == 7
    # the target's own first step, and what the drafter makes of it
    plain, target = run(pipe).tokens, pipe.start(LABELS, seed=SEEDS, num_iter=8, guidance_scale=1.0).target
    first, rest = target.order[:, target.plan[0].first :], target.order[:, : target.plan[0].first]
    pick = lambda tokens, at: tokens.gather(1, at[..., None].expand(-1, -1, 3))  # noqa: E731
    near(pick(out.tokens, first), pick(plain, first))
    assert not torch.isclose(pick(out.tokens, rest), pick(plain, rest)).all()
    near(run(pipe, CSpD(pipe, window=window, gamma=3, prefill=0.0)).tokens, plain)


def test_the_public_codes_setting_decodes() -> None:
    out = run(pipeline(), CSpD(other(), gamma=4, relaxation=PUBLISHED, prefill=0.15))
    assert out.tokens.isfinite().all() and out.stats.emitted == [16] * 3 and out.stats.drafter == "cspd patch 4"


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("window", ("patch", "truncate"))
@pytest.mark.parametrize("context", ("prefix", "drafts"))
def test_rows_do_not_depend_on_the_batch(window: str, context: str) -> None:
    pipe, small = pipeline(), other()
    decoding = CSpD(small, window=window, context=context, gamma=3, relaxation=Relaxation(42.0, "none"), prefill=0.1)
    whole = run(pipe, decoding)
    assert len({tuple(x for x in row) for row in zip(*whole.stats.accepted, strict=True)}) > 1  # rows went apart
    for row in range(3):
        alone = pipe([LABELS[row]], decoding=decoding, seed=[SEEDS[row]], num_iter=8, guidance_scale=1.0, pixels=False)
        near(alone.tokens[0], whole.tokens[row])


def test_both_contexts_agree_for_windows_of_one_step_only() -> None:
    pipe, small = pipeline(), other()
    made = {}
    for gamma in (1, 4):
        for context in ("prefix", "drafts"):
            decoding = CSpD(small, gamma=gamma, context=context, relaxation=Relaxation(1e-3), prefill=0.0)
            made[gamma, context] = run(pipe, decoding).tokens
    near(made[1, "prefix"], made[1, "drafts"])
    assert not torch.isclose(made[4, "prefix"], made[4, "drafts"]).all()


@pytest.mark.parametrize("share", (0.0, 0.3, 1.0))
def test_the_target_alone_begins(share: float, all_stand: None) -> None:
    out = run(pipeline(), CSpD(other(), gamma=2, prefill=share), num_iter=16)
    alone = next((n for n, row in enumerate(out.stats.accepted) if sum(row)), 16)
    assert alone == max(1, -(-int(share * 160) // 10))  # one token a round, of 16
    assert out.stats.drafter_passes == 16 - alone


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(window="cut"), "window: expected 'patch' or 'truncate', got 'cut'"),
        (dict(context="all"), "context: expected 'prefix', 'drafts' or None"),
        (dict(gamma=0), "gamma: expected at least 1"),
        (dict(prefill=1.5), "prefill: expected at least 0 and at most 1"),
        (dict(tolerance=0.1), "tolerance: expected window 'truncate' and context 'drafts'"),
        (
            dict(lazy=Lazy(2, 3), window="truncate", context="prefix"),
            "lazy: expected window 'patch' and context 'prefix'",
        ),
        (dict(lazy=Lazy(2, 3), context="drafts"), "lazy: expected window 'patch' and context 'prefix'"),
        (dict(tolerance=-1.0, window="truncate"), "tolerance: expected a distance of 0 or more"),
        (dict(relaxation=0.0), "temperature: expected above 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(pipeline(), CSpD(other(), **settings))


def test_a_drafter_of_another_size_or_walk_is_refused() -> None:
    from dataclasses import replace

    small = MARPipeline(transformer(replace(SIZES, vae_embed_dim=2)))
    with pytest.raises(ValueError, match="drafter: expected 16 tokens of 3 values as the target, got 16 of 2"):
        run(pipeline(), CSpD(small))
    with pytest.raises(ValueError, match="num_sampling_steps: expected 4 steps of the drafter's head.*got 3"):
        run(pipeline(), CSpD(other(), num_sampling_steps=3))
    with pytest.raises(ValueError, match="temperature: expected a number above 0"):
        run(pipeline(), CSpD(other()), temperature=0.0)


def test_a_shorter_walk_of_the_drafter_goes_with_a_tolerance() -> None:
    pipe = pipeline()
    decoding = CSpD(other(), window="truncate", gamma=2, tolerance=0.0, num_sampling_steps=3)
    near(run(pipe, decoding).tokens, run(pipe).tokens)


def test_annealed_walks_are_drafted_and_judged_alike() -> None:
    pipe, walk = pipeline(), HeadSampling(annealing=Annealing(4, 2))
    out = run(pipe, CSpD(pipe, window="truncate", gamma=3, tolerance=1e-2, head_sampling=walk), num_sampling_steps=4)
    assert all(sum(row) > 0 for row in out.stats.accepted[2:]) and not out.stats.exact


@pytest.mark.parametrize("prefill", (0.0, 0.2))
def test_an_annealed_window_is_one_head_trajectory(prefill: float) -> None:
    """Of as many steps as its first autoregressive step has: the target's and those of the drafter, one a step."""
    annealing, gamma, total = Annealing(16, 2), 3, 11
    decoding = CSpD(other(), gamma=gamma, prefill=prefill, head_sampling=HeadSampling(annealing=annealing))
    request = pipeline().start(
        LABELS, decoding=decoding, seed=SEEDS, num_iter=total, guidance_scale=2.0, num_sampling_steps=16
    )
    request.run()
    steps, number, expected = request.target.plan, 0, 0
    while number < len(steps):
        filled = request.target.total - steps[number].last
        alone = number == 0 or filled < prefill * request.target.total
        size = 1 if alone else min(gamma, len(steps) - number)
        expected += annealing.at(number, len(steps)) * (1 if alone else 1 + size)
        number += size
    assert request.target.head_calls == expected and len(steps) == total


@pytest.mark.parametrize(
    "schedules",
    [
        {"reconstruct": 2},
        {"head_sampling": HeadSampling(3)},
        {"head_sampling": HeadSampling(2, Annealing(4, 2)), "reconstruct": 1},
    ],
)
def test_tolerance_zero_is_the_same_schedules_without_drafts(schedules: dict) -> None:
    how = dict(guidance_scale=2.0, num_sampling_steps=4)
    alone = run(pipeline(), ScheduledSteps(**schedules), **how)
    out = run(pipeline(), CSpD(other(), window="truncate", gamma=3, tolerance=0.0, **schedules), **how)
    assert torch.equal(out.tokens, alone.tokens) and out.stats.exact == alone.stats.exact


def test_a_lazy_request_has_caches_of_its_own_for_both_models() -> None:
    pipe, how = pipeline(), dict(guidance_scale=2.0, num_iter=16)
    decoding = CSpD(other(), gamma=4, prefill=0.0, lazy=Lazy(2, 3))
    target = pipe.start(LABELS, decoding=decoding, seed=SEEDS, **how).target
    drafter = decoding.open(target)
    for request in (target, drafter):
        assert isinstance(request.model, FeatureCachedModel) and request.model is not decoding.drafter
    out = run(pipe, decoding, **how)
    assert (out.stats.target_passes, out.stats.drafter_passes) == (5, 15)
    near(
        run(pipe, CSpD(other(), gamma=4, lazy=Lazy(1, 1)), **how).tokens,
        run(pipe, CSpD(other(), gamma=4), **how).tokens,
    )
    assert not torch.allclose(out.tokens, run(pipe, CSpD(other(), gamma=4, prefill=0.0), **how).tokens)


def test_rows_with_cached_tokens_do_not_depend_on_the_batch() -> None:
    how = dict(gamma=3, relaxation=Relaxation(42.0, "none"), prefill=0.0)
    pipe, decoding = pipeline(), CSpD(other(), lazy=Lazy(2, 4, tokens=0.1), **how)
    asked = dict(num_iter=8, guidance_scale=2.0)
    request = pipe.start(LABELS, decoding=decoding, seed=SEEDS, **asked)
    request.run()
    whole = request.target.values
    # put right after a round, another token in each row: the drafter's caches are told of every one
    assert any(len(set(counts)) > 1 for counts in request.state.model.cache.computed)
    assert not torch.allclose(whole, run(pipe, CSpD(other(), **how), **asked).tokens, atol=1e-3)
    for row in range(3):
        alone = pipe([LABELS[row]], decoding=decoding, seed=[SEEDS[row]], pixels=False, **asked)
        near(alone.tokens[0], whole[row])


def test_nan_stops_its_row_and_leaves_the_others() -> None:
    pipe, small = pipeline(), other()
    decoding = CSpD(small, gamma=2, relaxation=Relaxation(42.0, "none"))
    whole = run(pipe, decoding)
    with torch.no_grad():
        pipe.model.transformer.class_emb.weight[4] = torch.nan
    out = run(pipe, decoding)
    assert list(out.errors) == [1] and "NaN" in out.errors[1]
    near(out.tokens[[0, 2]], whole.tokens[[0, 2]])

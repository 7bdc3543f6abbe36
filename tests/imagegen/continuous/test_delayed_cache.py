"""A drafter that keeps decoded tokens: complete passes change nothing, and the record is that of the cached run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.imagegen.continuous.cspd.cspd_drafter import CSpD, CSpDState
from mmspec.imagegen.continuous.mar.adapter import MARModel
from mmspec.imagegen.continuous.schedules.delayed_cache import DelayedCache
from mmspec.imagegen.continuous.schedules.feature_cache import FeatureCachedModel, Lazy
from tests.imagegen.continuous.test_cspd import LABELS, other, pipeline, run
from tests.imagegen.continuous.tiny import SIZES, transformer

TOTAL = 16


class Watched(CSpD):
    """Keeps the drafts of a request, and what the head was given for them."""

    def open(self, target):
        return WatchedState(self, target)


class WatchedState(CSpDState):
    seen: list[tuple]

    def propose(self, target, keys):
        self.given = []
        draft = super().propose(target, keys)
        WatchedState.seen.append((draft, self.given))
        return draft

    def _draw_step(self, model, target, values, known, place):
        drawn = super()._draw_step(model, target, values, known, place)
        self.given.append((place, drawn, model))
        return drawn


def drafts(cache: DelayedCache | None, **how) -> list[tuple]:
    WatchedState.seen = []
    run(pipeline(), Watched(other(), gamma=6, prefill=0.0, cache=cache), **how)
    return WatchedState.seen


@pytest.mark.parametrize("greedy", (True, False))
@pytest.mark.parametrize("scale", (1.0, 2.5))
def test_complete_passes_are_no_cache_bit_for_bit(greedy: bool, scale: float) -> None:
    for (one, _), (same, _) in zip(
        drafts(DelayedCache(1, greedy), guidance_scale=scale), drafts(None, guidance_scale=scale), strict=True
    ):
        assert torch.equal(one.value, same.value) and one.law.kind == same.law.kind
        if one.law.mean is not None:
            assert torch.equal(one.law.mean, same.law.mean) and torch.equal(one.law.scale, same.law.scale)


@pytest.mark.parametrize("greedy", (True, False))
def test_the_record_is_that_of_the_cached_run(greedy: bool) -> None:
    cached, plain = drafts(DelayedCache(8, greedy), guidance_scale=2.5), drafts(None, guidance_scale=2.5)
    windows = [(draft, given) for draft, given in cached if draft.law.mean is not None]
    assert len(windows) > 1 and all(len({id(model) for _, _, model in given}) == 1 for _, given in windows)
    for draft, given in windows:
        mean = {}
        for place, drawn, _ in given:
            for row, position in (place < TOTAL).nonzero().tolist():
                mean[row, int(place[row, position])] = (
                    drawn.last.mean[row, position],
                    drawn.last.log_scale[row, position].exp(),
                )
        for row, node in (draft.step >= 0).nonzero().tolist():
            own = mean[row, int(draft.index[row, node])]
            assert torch.equal(draft.law.mean[row, node], own[0]) and torch.equal(draft.law.scale[row, node], own[1])
    fresh = next(draft for draft, _ in plain if draft.law.mean is not None)
    assert not torch.allclose(windows[0][0].law.mean, fresh.law.mean)  # a cached run is another run


def conditions(model: FeatureCachedModel, passes: list[tuple[Tensor, Tensor, Tensor]]) -> list[list[int]]:
    for tokens, mask, wanted in passes:
        model.condition(tokens, mask, torch.tensor([1, 2]), False, wanted)
    return model.cache.computed


def test_a_pass_computes_the_open_tokens_and_those_of_the_step_before() -> None:
    drawn = torch.Generator().manual_seed(1)
    tokens, mask = torch.randn(2, TOTAL, 3, generator=drawn), torch.ones(2, TOTAL, dtype=torch.bool)
    passes = []
    for first, count in ((0, 2), (2, 3), (5, 1), (6, 2)):
        passes.append(
            (tokens.masked_fill(mask[..., None], 0), mask.clone(), torch.arange(first, first + count).expand(2, -1))
        )
        mask[:, first : first + count] = False
    model = MARModel(transformer(SIZES), None)
    assert conditions(DelayedCache(8).window(model), passes) == [[TOTAL] * 2, [TOTAL - 2] * 2, [TOTAL - 5] * 2]
    assert conditions(DelayedCache(8, greedy=True).window(model), passes) == [[2 + 3] * 2, [3 + 1] * 2, [1 + 2] * 2]
    assert conditions(DelayedCache(2).window(model), passes) == [[TOTAL] * 2, [TOTAL - 5] * 2]


def test_kept_tokens_have_the_state_of_the_pass_after_they_were_decoded() -> None:
    """The open tokens of a cached pass equal those of a decoder in which only newly decoded tokens were refreshed."""
    model = MARModel(transformer(SIZES), None)
    cached = DelayedCache(8).window(model)
    tokens, mask = torch.randn(1, TOTAL, 3), torch.ones(1, TOTAL, dtype=torch.bool)
    mask[:, :4] = False
    labels, wanted = torch.tensor([1]), torch.tensor([[4]])
    first = cached.condition(tokens.masked_fill(mask[..., None], 0), mask, labels, False, wanted)
    whole = model.condition(tokens.masked_fill(mask[..., None], 0), mask, labels, False)
    assert torch.equal(first, whole)
    later = mask.clone()
    later[:, 4] = False
    z = cached.condition(tokens.masked_fill(later[..., None], 0), later, labels, False, torch.tensor([[5]]))
    fresh = model.condition(tokens.masked_fill(later[..., None], 0), later, labels, False)
    assert torch.equal(z[:, :, :4], first[:, :, :4])  # decoded two steps ago: kept
    assert not torch.equal(z[:, :, 4], first[:, :, 4]) and not torch.allclose(z[:, :, 5:], fresh[:, :, 5:])


def test_tolerance_zero_is_plain_decoding_with_a_cached_drafter() -> None:
    pipe = pipeline()
    decoding = CSpD(other(), window="truncate", gamma=6, tolerance=0.0, prefill=0.0, cache=DelayedCache(4))
    assert torch.equal(run(pipe, decoding).tokens, run(pipe).tokens)


@pytest.mark.whole
def test_a_row_alone_is_the_row_in_a_batch() -> None:
    for window in ("patch", "truncate"):
        decoding = CSpD(other(), window=window, gamma=6, prefill=0.0, cache=DelayedCache(3, greedy=True))
        together = run(pipeline(), decoding)
        alone = pipeline()(LABELS[1:2], decoding=decoding, seed=[6], num_iter=8, guidance_scale=1.0, pixels=False)
        torch.testing.assert_close(alone.tokens[0], together.tokens[1], atol=2e-4, rtol=2e-4)


def test_its_text_and_its_refusals() -> None:
    cache = mmspec.methods.parse("delayed:every=4,greedy=true", "continuous", "schedule").make()
    assert cache == DelayedCache(4, greedy=True) and cache.name == "delayed cache 4 greedy"
    assert CSpD(other(), cache=cache).name.endswith("delayed cache 4 greedy")
    with pytest.raises(ValueError, match="every.*0"):
        DelayedCache(0)
    with pytest.raises(ValueError, match="cache.*without lazy"):
        CSpD(other(), cache=cache, lazy=Lazy())
    with pytest.raises(ValueError, match="lazy.*Lazy"):
        CSpD(other(), lazy=cache)

"""Pipelines of images, of continuous tokens and of videos that were enabled and disabled are as they were, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mmspec
from mmspec.imagegen import SJD, CSpD, MARPipeline
from mmspec.imagegen.continuous.causal.causal_drafter import SmallCausal
from mmspec.imagegen.rules.gsd import GSD
from mmspec.video import SDVG
from tests.attach.traces import traces
from tests.evaluate.tiny_continuous import causal, masked
from tests.evaluate.tiny_images import classed
from tests.evaluate.tiny_video import blocks
from tests.video.decoding.tiny import bright


def cspd(tolerance: float) -> CSpD:
    return CSpD(masked(1), window="truncate", gamma=2, tolerance=tolerance, prefill=0.0)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str, list]] = {
    "image": (classed, lambda: SJD(window=4), "exact", [3, 9]),
    "continuous": (masked, lambda: cspd(1e-2), "relaxed", [1, 5]),
    "continuous, own draws": (masked, lambda: cspd(0.0), "exact", [1, 5]),
    "causal": (causal, lambda: SmallCausal(causal(1).model.transformer, 2), "exact", [2, 7]),
    "video": (blocks, lambda: SDVG(blocks(1), bright, threshold=0.5), "relaxed", ["a red circle"]),
}
TEXTS = {
    "image": "sjd:window=4",
    "continuous": "cspd:gamma=2,tolerance=0.01,prefill=0@zoo:mar/draft",
    "continuous, own draws": "cspd:gamma=2,tolerance=0,prefill=0@zoo:mar/draft",
    "causal": "small:gamma=2@zoo:car/draft",
    "video": "sdvg:threshold=0.5@zoo:video/draft",
}
kinds = pytest.mark.parametrize("kind", KINDS)


def made(pipe: Any, prompts: list) -> tuple:
    """Tokens or latents, and the bytes of the pictures."""
    out = pipe(prompts, seed=3)
    latents = getattr(out, "tokens", None)
    return (out.latents if latents is None else [latents]), [np.asarray(v) for v in out.videos]


def same(first: tuple, second: tuple) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True)) and all(
        np.array_equal(a, b) for a, b in zip(first[1], second[1], strict=True)
    )


@kinds
def test_nothing_is_left_of_it(kind: str) -> None:
    new, decoding, mode, prompts = KINDS[kind]
    pipe = new()
    own = made(pipe, prompts)
    before, methods = traces(pipe), dict(vars(type(pipe)))
    with mmspec.enable(pipe, decoding(), mode=mode) as handle:
        assert handle.obj is pipe and list(vars(pipe)) == [*before[": names"], "start"]
        made(pipe, prompts)
        during = handle.summary()
    assert traces(pipe) == before and dict(vars(type(pipe))) == methods
    assert same(made(pipe, prompts), own)
    assert during.calls == 1 and during.emitted > 0 and during.exact == (mode == "exact")
    assert handle.summary().to_dict() == during.to_dict()


@kinds
def test_an_enabled_pipeline_matches_the_decoding_named_in_the_call(kind: str) -> None:
    new, decoding, mode, prompts = KINDS[kind]
    pipe = new()
    named = pipe(prompts, seed=3, decoding=decoding())
    with mmspec.enable(pipe, decoding(), mode=mode) as handle:
        by_itself = pipe(prompts, seed=3)
    told = handle.summary()
    for name in ("target_passes", "drafter_passes", "exact", "accept_length"):
        assert getattr(told, name) == getattr(named.stats, name) == getattr(by_itself.stats, name)
    assert told.rules == [named.stats.rule] and told.drafters == [named.stats.drafter]


@kinds
def test_auto_is_the_decoding_that_the_pipeline_selects(kind: str) -> None:
    new, _, _, prompts = KINDS[kind]
    pipe = new()
    named, before = pipe(prompts, seed=3, decoding="auto").stats, traces(pipe)
    with mmspec.enable(pipe, "auto") as handle:
        pipe(prompts, seed=3)
    told = handle.summary()
    assert told.calls == 1 and told.exact and told.emitted == sum(named.emitted)
    assert told.rules == [named.rule] and told.drafters == [named.drafter]
    assert told.drafters[0].startswith("goodput(") == (kind == "image")
    assert traces(pipe) == before


def test_a_relaxed_decoding_is_refused_without_relaxed_mode() -> None:
    pipe = blocks()
    with pytest.raises(ValueError, match="pass mode='relaxed'"):
        mmspec.enable(pipe, SDVG(blocks(1), bright, threshold=0.5))
    assert "start" not in vars(pipe)
    images = classed()
    with pytest.raises(ValueError, match="pass mode='relaxed'"):
        mmspec.enable(images, SJD(window=4), rule=GSD())
    with mmspec.enable(images, SJD(window=4)) as handle, pytest.raises(ValueError, match="enable with mode='relaxed'"):
        images([1], seed=0, rule=GSD())
    assert handle.summary().calls == 0 and "gsd" in next(iter(handle.summary().refused))
    with mmspec.enable(images, SJD(window=4), mode="relaxed", rule=GSD()) as handle:
        images([1], seed=0)
    assert not handle.summary().exact and handle.summary().rules == [GSD().name]


@kinds
def test_a_decoding_text_matches_its_decoding_object(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = {"mar/draft": masked(1), "car/draft": causal(1), "video/draft": blocks(1), "video/reward": bright}
    monkeypatch.setattr("mmspec.zoo.files.registry.load", drafts.__getitem__)
    new, decoding, mode, prompts = KINDS[kind]
    pipe, text = new(), TEXTS[kind]
    with mmspec.enable(pipe, text, mode=mode) as handle:
        by_text = made(pipe, prompts)
    with mmspec.enable(pipe, decoding(), mode=mode):
        assert same(made(pipe, prompts), by_text)
    assert handle.summary().calls == 1 and handle.summary().exact == (mode == "exact")
    if mode == "relaxed":
        with pytest.raises(ValueError, match="pass mode='relaxed'"):
            mmspec.enable(pipe, text)


def test_a_rule_may_be_a_text() -> None:
    pipe = classed()
    with pytest.raises(ValueError, match="pass mode='relaxed'"):
        mmspec.enable(pipe, "sjd:window=4", rule="lantern:delta=0.2,k=4")
    with mmspec.enable(pipe, "sjd:window=4", mode="relaxed", rule="lantern:delta=0.2,k=4") as handle:
        pipe([1], seed=0)
    assert handle.summary().rules[0].startswith("lantern")


def test_a_call_may_name_another_decoding() -> None:
    pipe = classed()
    with mmspec.enable(pipe, SJD(window=4)) as handle:
        pipe([1], seed=0, decoding=SJD(window=2))
        pipe([1], seed=0)
    assert handle.summary().calls == 2 and len(handle.summary().drafters) in (1, 2)


def test_requests_that_are_stepped_by_hand_are_counted_as_they_go() -> None:
    pipe = classed()
    with mmspec.enable(pipe, SJD(window=4)) as handle:
        run = pipe.start([1], seed=0)
        run.step()
        assert handle.summary().target_passes == 1
        run.run()
        assert handle.summary().emitted == 16
        del run
        assert handle.summary().emitted == 16 and not handle._open  # nothing of it is held


def test_invalid_decodings_are_refused() -> None:
    pipe = classed()
    for drafter in (SJD, 3):
        with pytest.raises(ValueError, match="drafter: expected"):
            mmspec.enable(pipe, drafter)
    with pytest.raises(ValueError, match="decoding: expected one of ar, sjd, scd, .*, got 'sjdd'; did you mean 'sjd'"):
        mmspec.enable(pipe, "sjdd")
    with pytest.raises(ValueError, match="rule: expected it left out for BlockVideoPipeline"):
        mmspec.enable(blocks(), rule="exact")
    assert isinstance(masked(), MARPipeline) and "start" not in vars(pipe)


def test_two_pipelines_of_one_class_are_enabled_independently() -> None:
    first, second = classed(), classed()
    with mmspec.enable(first, SJD(window=4)):
        second([1], seed=0, pixels=False)
        with mmspec.enable(second, SJD(window=2)) as other:
            first([1], seed=0, pixels=False)
            assert other.summary().calls == 0
        assert mmspec.summary(first).calls == 1

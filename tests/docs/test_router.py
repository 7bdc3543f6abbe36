"""The router of the page on routers: what it keeps, the target's own videos at infinity, and its text form."""

from __future__ import annotations

import math

import pytest
import torch

from mmspec.methods import find, parse
from mmspec.video import Hybrid, Threshold
from mmspec.video.routing.routers import BlockEvidence
from tests.docs.examples import imported, said
from tests.evaluate.tiny_video import use_tiny_video
from tests.video.decoding.tiny import bright, pipeline, sdvg


def test_it_runs_as_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    use_tiny_video(monkeypatch)
    rising, alone = said(monkeypatch, capsys, "use_router")
    assert rising.startswith("reward >= 0.3 + 0.2 * run (relaxed) exact: False")
    assert alone.startswith("target alone (least inf) exact: True drafts kept: 0")


def test_each_draft_kept_in_a_row_raises_the_score_that_the_next_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    rising = imported(monkeypatch, "router").Rising(0.5, step=0.25)
    run, score = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0.5, 0.4, 0.75, 0.7, 1.0, math.nan])
    evidence = BlockEvidence(reward=torch.stack((torch.zeros(6), score), 1), run=run)
    assert rising.accept(evidence).tolist() == [True, False, True, False, True, False]


def test_its_limits_are_known_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    rising, pipe = imported(monkeypatch, "router").Rising, pipeline()

    def latents(router: object) -> torch.Tensor:
        decoding = None if router is None else sdvg(bright, router=router)
        return pipe(["a red circle", "a blue star"], decoding=decoding, seed=3, pixels=False).latents

    def same(one: object, other: object) -> bool:
        return all(torch.equal(a, b) for a, b in zip(latents(one), latents(other), strict=True))

    assert same(rising(math.inf), None)
    assert same(rising(0.0, step=0.0), Threshold(0.0)) and not same(rising(0.0, step=0.0), None)
    assert same(rising(-1.0, step=1e9), Hybrid(1, Threshold(-1.0)))  # no two drafts are kept in a row
    assert not same(rising(-1.0, step=1e9), Threshold(-1.0))


def test_its_text_is_known_once_the_module_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(monkeypatch, "router")
    router = parse("rising:least=-0.7,step=0.05", "video", "router").make()
    assert type(router) is module.Rising and (router.least, router.step) == (-0.7, 0.05)
    assert [setting.name for setting in find("rising").settings] == ["least", "step"]
    for wrong in ("rising:least=nan", "rising:least=0,step=-1", "rising"):
        with pytest.raises(ValueError, match="expected .*, got "):
            parse(wrong, "video", "router").make()

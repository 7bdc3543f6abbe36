"""Numbers and truth values of a wrong type stop video requests, routers and settings with the argument's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest

from mmspec import video
from mmspec.run.video_models import router_of
from tests.video.decoding.tiny import bright, drafter, pipeline
from tests.wrong_values import cases, refused

_SCHEDULER = SimpleNamespace(config=SimpleNamespace(stages=3))
SETTINGS: dict[Callable, Callable] = {
    video.BlockPlan: video.BlockPlan,
    video.Cached: video.Cached,
    video.Explore: video.Explore,
    video.FewStep: video.FewStep,
    video.FlowMap: video.FlowMap,
    video.Hybrid: partial(video.Hybrid, veto=video.Threshold(0.0)),
    video.Learned: partial(video.Learned, None),
    video.Random: video.Random,
    video.Rebuilt: video.Rebuilt,
    video.Relative: video.Relative,
    video.SDVG: partial(video.SDVG, drafter(), bright, threshold=0.0),
    video.Scheduled: partial(video.Scheduled, _SCHEDULER),
    video.Strided: video.Strided,
    video.Threshold: video.Threshold,
    video.VideoGuidance: video.VideoGuidance,
    video.ZeroStarGuidance: video.ZeroStarGuidance,
}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one.__name__)
def test_settings_refuse_invalid_numbers_and_booleans(settings: Callable) -> None:
    tried = list(cases(settings))
    assert tried
    for name, value in tried:
        known = {"least": "threshold"}.get(name, name)  # the argument's name in SDVG and on the command line
        refused(SETTINGS[settings], known, value, name)


def test_a_request_for_videos_refuses_wrong_numbers_before_it_computes() -> None:
    call = partial(pipeline(), "a prompt", pixels=False)
    for name, value in cases(type(call.func).__call__, ("blocks", "seed")):
        refused(call, name, value)
    for value in ("no", 1, None):
        refused(call, "pixels", value)
    for value in ((True, 8), (8.0, 8), (math.nan, 8), ("8", 8), 8, "8x8"):
        refused(call, "size", value)
    for value in ({True: "later"}, {1.5: "later"}, {"1": "later"}, ["later"]):
        refused(call, "switch", value)


def test_parts_that_are_missing_are_named() -> None:
    for value in (None, 3, "draft"):
        with pytest.raises(ValueError, match="^drafter: expected BlockVideoModel"):
            video.SDVG(value, bright, 0.0)


@pytest.mark.parametrize(
    "text",
    ("strided:budget=nan", "strided:budget=2.5", "random:budget=inf", "hybrid:run=nan,least=0", "hybrid:run=1,least=nan",
     "explore:rate=nan", "explore:rate=2", "relative:margin=nan", "threshold:least=x"),
)  # fmt: skip
def test_a_router_in_a_line_of_text_names_the_setting_that_does_not_fit(text: str) -> None:
    setting = next(part for part in text.split(":")[1].split(",") if not part.endswith("=0") and part != "run=1")
    name = {"least": "(least|threshold)"}.get(setting.partition("=")[0], setting.partition("=")[0])
    with pytest.raises(ValueError, match=rf"^router .*{name}: expected ") as error:
        router_of(text)
    assert "literal" not in str(error.value)

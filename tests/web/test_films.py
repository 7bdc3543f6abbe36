"""The video tab's lanes, on tiny models; without weights it is one sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmspec.evaluate.video.resources import VideoResources, open_video
from mmspec.web.lanes.markup import block_tiles
from mmspec.web.lanes.pictures import PictureLane, identical, missing_models, picture_lanes, video_request
from mmspec.web.lanes.pixels import animation as playing
from tests.evaluate.tiny_video import BLOCKS, use_tiny_video


@pytest.fixture
def resources(monkeypatch: pytest.MonkeyPatch) -> VideoResources:
    use_tiny_video(monkeypatch)
    return open_video("video")


def last(resources: VideoResources, threshold: float, seconds: float = 60) -> tuple[PictureLane, PictureLane]:
    *_, pair = picture_lanes(video_request(resources, "a red circle", threshold, BLOCKS, 1), seconds)
    return pair


def routes(lane: PictureLane) -> list[str]:
    return [name for one in lane.rounds for _, name, _ in one.marks["blocks"]]


def test_an_infinite_threshold_is_the_model_alone_pixel_for_pixel(resources) -> None:
    plain, fast = last(resources, math.inf)
    assert identical(plain, fast) and plain.stats.exact and fast.stats.exact
    assert routes(plain) == ["own"] * BLOCKS


def test_a_low_threshold_lets_every_draft_stand_but_the_first(resources) -> None:
    plain, fast = last(resources, -100.0)
    assert routes(fast) == ["own", *["accepted"] * (BLOCKS - 1)]
    assert not fast.stats.exact and not identical(plain, fast)
    judged = [score for one in fast.rounds for _, name, score in one.marks["blocks"] if name == "accepted"]
    assert len(judged) == BLOCKS - 1 and all(isinstance(score, float) for score in judged)


def test_frames_are_the_public_calls(resources) -> None:
    _, fast = last(resources, -100.0)
    from mmspec.video import SDVG

    decoding = SDVG(resources.drafter(), resources.reward(), threshold=-100.0)
    out = resources.pipeline(["a red circle"], seed=[1], blocks=BLOCKS, decoding=decoding)
    assert np.array_equal(out.videos[0], fast.output)


def test_tiles_say_who_drew_a_block_and_films_are_held_in_the_page(resources) -> None:
    _, fast = last(resources, -100.0)
    drawn = block_tiles(fast)
    assert drawn.count("<li") == BLOCKS and drawn.count("the draft stands") == BLOCKS - 1
    assert playing(fast.output, 8, "a <b>").startswith(
        '<img class="mm-picture" alt="a &lt;b&gt;" src="data:image/gif;base64,'
    )


def test_without_weights_one_sentence_says_how_to_build_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["vlm", "video"])
    said = missing_models()
    assert "mmspec zoo build video/draft and mmspec zoo build video/reward" in said and "build video " not in said
    use_tiny_video(monkeypatch)
    assert missing_models() is None

"""The video tab's lanes, on tiny models; without weights it is one sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmspec.run.video_models import VideoResources, open_video
from mmspec.web.lanes.cells import layout
from mmspec.web.lanes.decodings import VIDEO_FORMS, missing_models, offered
from mmspec.web.lanes.markup import block_tiles
from mmspec.web.lanes.pictures import PictureLane, identical, image_request, picture_lanes, video_request
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
    return [name for round_ in lane.rounds for _, name, _ in round_.marks["blocks"]]


def test_an_infinite_threshold_is_the_model_alone_pixel_for_pixel(resources) -> None:
    plain, fast = last(resources, math.inf)
    assert identical(plain, fast) and plain.stats.exact and fast.stats.exact
    assert routes(plain) == ["own"] * BLOCKS


def test_a_low_threshold_lets_every_draft_stand_but_the_first(resources) -> None:
    plain, fast = last(resources, -100.0)
    assert routes(fast) == ["own", *["accepted"] * (BLOCKS - 1)]
    assert not fast.stats.exact and not identical(plain, fast)
    judged = [score for round_ in fast.rounds for _, name, score in round_.marks["blocks"] if name == "accepted"]
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
    assert drawn.count("<li") == BLOCKS and drawn.count("draft accepted") == BLOCKS - 1
    assert playing(fast.output, 8, "a <b>").startswith(
        '<img class="mm-picture" alt="a &lt;b&gt;" src="data:image/gif;base64,'
    )


def test_missing_weights_report_their_build_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.zoo.names", lambda: ["vlm", "video"])
    said = missing_models()
    assert "mmspec zoo build video/draft and mmspec zoo build video/reward" in said and "build video " not in said
    use_tiny_video(monkeypatch)
    assert missing_models() is None


def test_a_video_of_tokens_fills_every_cell_and_the_copied_program_draws_it(tmp_path, monkeypatch) -> None:
    resources = open_video("video/tokens").codes
    request = image_request(
        resources, "a red circle moves to the right", VIDEO_FORMS["scd"], {"temperature": 1.0}, 0, "video"
    )
    *_, (plain, fast) = picture_lanes(request, 60)
    assert VIDEO_FORMS["scd"] in offered("video/tokens", "exact") and fast.stats.exact
    assert fast.output.shape == plain.output.shape == (8, 32, 32, 3) and fast.stats.target_passes < 200
    rows, columns, place = layout(request.pipe)
    cells = {
        place(cell)
        for round_ in fast.rounds
        for name in ("accepted", "corrected", "own")
        for cell in round_.marks[name]
    }
    assert len(cells) == 512 and max(cells) == (rows - 1, columns - 1)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(request.code, names)
    assert np.array_equal(names["out"].arrays()[0], fast.output) and (tmp_path / "video.gif").is_file()


def test_the_copied_program_of_blocks_draws_the_fast_lane(resources, monkeypatch, tmp_path) -> None:
    request = video_request(resources, "a red circle", -100.0, BLOCKS, 1)
    *_, (_, fast) = picture_lanes(request, 60)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(request.code, names)
    assert np.array_equal(names["out"].videos[0], fast.output)

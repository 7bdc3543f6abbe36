"""The video tab: blocks with their scores and routes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from mmspec.web.lanes import markup
from mmspec.web.lanes.pixels import animation
from mmspec.web.lanes.video import VideoLane, VideoLaneRequest, identical, missing_models, video_lanes
from mmspec.web.limits import LARGEST_SEED, RefusedRequest, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import QUIET, checked_law, law_switch, prompt_row, seed_row, small_handler
from mmspec.web.tabs.lane_tab import LaneReport, LaneTab

EXAMPLES = ("a red circle moves left", "a large blue star moves up", "a small green square moves right")
FPS = 8.0
MOST_SCORE = 100.0


class VideoTab(LaneTab):
    """Draw a video block by block; without a model the tab is one sentence."""

    id = api = "video"

    def build(self) -> None:
        absent = missing_models()
        if absent is None:
            super().build()
        else:
            gr.HTML(f'<p class="mm-note">{absent}</p>', elem_id=f"{self.id}-absent", container=False)

    def request_controls(self) -> list[Any]:
        return [prompt_row(self.id, EXAMPLES, self.page.limits)]

    def setting_controls(self) -> list[Any]:
        self.law, self.warning = law_switch(
            "A drafted block is kept where its score reaches the threshold, whatever the model would have drawn."
        )
        self.threshold = gr.Number(
            0.0, label="Threshold of a block's score", minimum=-MOST_SCORE, maximum=MOST_SCORE, visible=False
        )
        blocks = gr.Slider(1, self.page.limits.blocks, 4, step=1, label="Blocks")
        return [self.law, self.threshold, blocks, seed_row()]

    def connect(self, line: gr.HTML) -> None:
        self.law.change(_switch, self.law, [self.warning, self.threshold], **QUIET)

    def checked(self, prompt, law, threshold, blocks, seed) -> Callable[[], VideoReport]:
        if (absent := missing_models()) is not None:
            raise RefusedRequest(absent)
        relaxed = checked_law(law) == "relaxed"
        request = VideoLaneRequest(
            checked_text("prompt", prompt, self.page.limits),
            checked_number("threshold", threshold, -MOST_SCORE, MOST_SCORE) if relaxed else math.inf,
            checked_whole("seed", seed, 0, LARGEST_SEED),
            checked_whole("blocks", blocks, 1, self.page.limits.blocks),
        )
        return lambda: VideoReport(self.page.model_cache.video_resources(), request)


class VideoReport(LaneReport):
    """Two videos of a prompt."""

    unit = "blocks"

    def __init__(self, resources: Any, request: VideoLaneRequest):
        self.resources, self.request = resources, request

    def lanes(self, seconds: float) -> Iterator[tuple[VideoLane, VideoLane]]:
        return video_lanes(self.resources, self.request, seconds)

    def view(self, lane: VideoLane) -> str:
        shown = "" if lane.frames is None else animation(lane.frames, FPS, f"the video of {lane.title}")
        return shown + markup.block_tiles(lane)

    def progress(self, lane: VideoLane) -> tuple[str, float]:
        done = len(lane.rounds)
        return f"block {done} of {lane.blocks}", done / max(lane.blocks, 1)

    def same(self, plain: VideoLane, fast: VideoLane) -> bool:
        return identical(plain, fast)

    def summary(self) -> str:
        return f"seed {self.request.seed}"

    def figures(self, lane: VideoLane) -> dict[str, Any]:
        blocks = [
            {"block": number, "route": name, "score": score, "seconds": round(one.seconds, 4)}
            for one in lane.rounds
            for number, name, score in one.marks["blocks"]
        ]
        return markup.figures(lane) | {"blocks": blocks}


@small_handler
def _switch(law: Any) -> tuple[Any, Any]:
    relaxed = checked_law(law) == "relaxed"
    return gr.update(visible=relaxed), gr.update(visible=relaxed)

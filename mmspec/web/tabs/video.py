"""The video tab: blocks with their scores and routes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gradio as gr

from mmspec.web.lanes import markup as painted
from mmspec.web.lanes import markup as told
from mmspec.web.lanes.markup import block_tiles as tiles
from mmspec.web.lanes.pixels import animation as playing
from mmspec.web.lanes.video import VideoLane, VideoLaneRequest, identical, missing_models, video_lanes
from mmspec.web.limits import LARGEST_SEED, RefusedRequest, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import (
    ALONE,
    QUIET,
    PageContext,
    cancels,
    checked_law,
    handler,
    lanes_column,
    law_switch,
    paced,
    prompt_row,
    run_row,
    seed_row,
    small_handler,
    status_line,
)

ID = "video"
EXAMPLES = ("a red circle moves left", "a large blue star moves up", "a small green square moves right")
FPS = 8.0
MOST_SCORE = 100.0


def video_tab(bench: PageContext) -> None:
    """Builds the tab; where there is no model it is one sentence."""
    absent = missing_models()
    if absent is not None:
        gr.HTML(f'<p class="mm-note">{absent}</p>', elem_id=f"{ID}-absent", container=False)
        return
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            prompt = prompt_row(ID, EXAMPLES, bench.limits)
            run, cancel = run_row(ID, "Draw")
            line = status_line(ID)
            law, warning = law_switch("A drafted block stands where its score reaches the threshold, whatever the model "
                                      "would have drawn.")  # fmt: skip
            threshold = gr.Number(0.0, label="Threshold of a block's score", minimum=-MOST_SCORE, maximum=MOST_SCORE,
                                  visible=False)  # fmt: skip
            blocks = gr.Slider(1, bench.limits.blocks, 4, step=1, label="Blocks")
            seed = seed_row()
        told_of = lanes_column(ID)
    law.change(_switch, law, [warning, threshold], **QUIET)
    event = run.click(_handler(bench), [prompt, law, threshold, blocks, seed], [line, *told_of],
                      api_name="video", show_progress="hidden", **ALONE)  # fmt: skip
    cancels(cancel, event, line)


@small_handler
def _switch(law: Any) -> tuple[Any, Any]:
    relaxed = checked_law(law) == "relaxed"
    return gr.update(visible=relaxed), gr.update(visible=relaxed)


def _handler(bench: PageContext) -> Any:
    limits = bench.limits

    @handler(rest=4)
    def draw(prompt, law, threshold, blocks, seed) -> Iterator[tuple]:
        if (absent := missing_models()) is not None:
            raise RefusedRequest(absent)
        relaxed = checked_law(law) == "relaxed"
        least = checked_number("threshold", threshold, -MOST_SCORE, MOST_SCORE) if relaxed else math.inf
        film = VideoLaneRequest(
            checked_text("prompt", prompt, limits),
            least,
            checked_whole("seed", seed, 0, LARGEST_SEED),
            checked_whole("blocks", blocks, 1, limits.blocks),
        )
        yield told.status("Loading the model and warming up.", "running"), "", "", "", None
        for plain, fast in paced(video_lanes(bench.shelf.video_resources(), film, limits.seconds)):
            yield _shown(plain, fast, film)

    return draw


def _shown(plain: VideoLane, fast: VideoLane, film: VideoLaneRequest) -> tuple:
    done = fast.ended
    parts = [(lane, _lane(lane)) for lane in (plain, fast)]
    view = painted.lanes(parts, unit="blocks", replay=done, legend=("accepted", "corrected", "own"))
    same = identical(plain, fast)
    record = {"identical": same, "done": done, **{name: told.figures(lane) | {"blocks": _blocks(lane)}
              for name, lane in (("plain", plain), ("fast", fast))}}  # fmt: skip
    if not done:
        lane = fast if fast.rounds else plain
        return (told.status(f"{lane.title}: block {len(lane.rounds)} of {lane.blocks}", "running",
                            len(lane.rounds) / max(lane.blocks, 1)), gr.skip(), view, gr.skip(), record)  # fmt: skip
    line = told.status(f"Done: seed {film.seed}.", "done")
    headline = told.headline(plain, fast, same, "blocks") if fast.finished and plain.finished else ""
    return line, headline, view, told.table([told.figures(plain), told.figures(fast)], "blocks"), record


def _lane(lane: VideoLane) -> str:
    shown = "" if lane.frames is None else playing(lane.frames, FPS, f"the video of {lane.title}")
    return shown + tiles(lane)


def _blocks(lane: VideoLane) -> list[dict[str, Any]]:
    return [
        {"block": number, "route": name, "score": score, "seconds": round(one.seconds, 4)}
        for one in lane.rounds
        for number, name, score in one.marks["blocks"]
    ]

"""The tab of videos, of tokens or of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from mmspec.methods import decoding_with
from mmspec.web.lanes import markup
from mmspec.web.lanes.decodings import VIDEO_FORMS, VIDEO_TOKENS, has_video_tokens, missing_models
from mmspec.web.lanes.pictures import PictureLane, image_request, video_request
from mmspec.web.lanes.pixels import animation
from mmspec.web.limits import LARGEST_SEED, RefusedRequest, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import QUIET, checked_law, law_switch, prompt_row, seed_row, small_handler
from mmspec.web.tabs.lane_tab import LaneTab
from mmspec.web.tabs.pictures import ImageReport, PictureReport, choices_of

FPS = 8.0
MOST_SCORE = 100.0
VIDEO_CAPTION = "Look at the colour and the shape, and whether both move; these small models often miss the direction."
TOKENS, BLOCKS = VIDEO_TOKENS, "video"
MODELS = {
    TOKENS: "tokens: 8 frames of 32x32 pixels, drafts of tokens",
    BLOCKS: "blocks: frames of 64x64 pixels, drafts of whole blocks",
}


def video_models() -> dict[str, str]:
    """Return the titles of the video models whose weights are available, by name."""
    available = {TOKENS: has_video_tokens(), BLOCKS: missing_models() is None}
    return {name: title for name, title in MODELS.items() if available[name]}


class VideoTab(LaneTab):
    """Draw a video token by token or block by block; without a model the tab is a sentence."""

    id = api = "video"
    examples = ("a red circle moves to the right", "a blue circle moves to the left")
    start = VIDEO_FORMS.get(name := decoding_with("usual", "video").name, name)

    def build(self) -> None:
        if video_models():
            super().build()
        else:
            gr.HTML(f'<p class="mm-note">{missing_models()}</p>', elem_id=f"{self.id}-absent", container=False)

    def request_controls(self) -> list[Any]:
        return [prompt_row(self.id, self.examples, self.page.limits)]

    def setting_controls(self) -> list[Any]:
        models = video_models()
        first = next(iter(models))
        of_tokens = first == TOKENS
        self.model = gr.Radio([(title, name) for name, title in models.items()], value=first, label="Model")
        self.decoding = gr.Dropdown(
            **choices_of(TOKENS, "exact", self.start), label="Decoding of the fast lane", visible=of_tokens
        )
        self.law, self.warning = law_switch(
            "Tokens: the rule may accept a neighbour of a token. Blocks: a drafted block is accepted if its score reaches the "
            "threshold, whatever the model would draw."
        )
        self.threshold = gr.Number(
            0.0, label="Threshold of a block's score", minimum=-MOST_SCORE, maximum=MOST_SCORE, visible=False
        )
        self.blocks = gr.Slider(1, self.page.limits.blocks, 4, step=1, label="Blocks", visible=not of_tokens)
        self.temperature = gr.Slider(0, 2, 1, step=0.05, label="Temperature (0 is greedy)", visible=of_tokens)
        inputs = [self.model, self.decoding, self.law, self.threshold, self.blocks, self.temperature, seed_row()]
        gr.HTML(
            '<p class="mm-note">Exact drafts of blocks accept none, so only the relaxed mode of blocks is faster.</p>',
            container=False,
        )
        return inputs

    def connect(self, outputs: list[Any], cleared: list[Any]) -> None:
        shown = [self.warning, self.decoding, self.threshold, self.blocks, self.temperature]
        gr.on([self.law.change, self.model.change], _switch(self.start), [self.law, self.model], shown, **QUIET)

    def checked(
        self, prompt, model, decoding, law, threshold, blocks, temperature, seed
    ) -> Callable[[], PictureReport]:
        models = video_models()
        if not models:
            raise RefusedRequest(str(missing_models()))
        model, law = checked_choice("model", model, tuple(models)), checked_law(law)
        prompt = checked_text("prompt", prompt, self.page.limits)
        seed = checked_whole("seed", seed, 0, LARGEST_SEED)
        if model == TOKENS:
            decoding = checked_choice("decoding", decoding, tuple(choice for _, choice in _decodings(law)))
            return self._tokens(
                prompt, decoding, {"temperature": checked_number("temperature", temperature, 0, 2)}, seed
            )
        threshold = checked_number("threshold", threshold, -MOST_SCORE, MOST_SCORE) if law == "relaxed" else math.inf
        blocks = checked_whole("blocks", blocks, 1, self.page.limits.blocks)
        resources = self.page.model_cache.video_resources
        return lambda: BlockReport(video_request(resources(BLOCKS), prompt, threshold, blocks, seed))

    def _tokens(self, prompt: str, decoding: str, plain: Mapping[str, Any], seed: int) -> Callable[[], PictureReport]:
        resources = self.page.model_cache.video_resources
        return lambda: FrameReport(image_request(resources(TOKENS).codes, prompt, decoding, plain, seed, "video"))


class FrameReport(ImageReport):
    """Two videos of tokens."""

    def picture(self, lane: PictureLane) -> str:
        return _animation(lane)

    def media(self, plain: PictureLane, fast: PictureLane) -> tuple:
        return ()


class BlockReport(PictureReport):
    """Two videos of blocks."""

    unit = "blocks"

    def captions(self, fast: PictureLane) -> tuple[str, str]:
        return (
            "Plain decoding: every block is the model's own.",
            "Look at the tiles with a green edge: their drafts were accepted, so the model did not draw these blocks.",
        )

    def view(self, lane: PictureLane) -> str:
        return _animation(lane) + markup.block_tiles(lane)

    def progress(self, lane: PictureLane) -> tuple[str, float]:
        done = len(lane.rounds)
        return f"block {done} of {lane.blocks}", done / max(lane.blocks, 1)

    def figures(self, lane: PictureLane) -> dict[str, Any]:
        blocks = [
            {"block": number, "route": name, "score": score, "seconds": round(round_.seconds, 4)}
            for round_ in lane.rounds
            for number, name, score in round_.marks["blocks"]
        ]
        return markup.figures(lane) | {"blocks": blocks}


def _animation(lane: PictureLane) -> str:
    if lane.output is None:
        return ""
    return animation(lane.output, FPS, f"the video of {lane.title}") + markup.caption(VIDEO_CAPTION)


def _decodings(law: str) -> list[tuple[str, str]]:
    return choices_of(TOKENS, law, VideoTab.start)["choices"]


def _switch(start: str) -> Callable[..., tuple]:
    """Return the handler that follows the switch and the model."""

    @small_handler
    def switch(law: Any, model: Any) -> tuple:
        law, of_tokens = checked_law(law), checked_choice("model", model, tuple(MODELS)) == TOKENS
        relaxed = law == "relaxed"
        return (
            gr.update(visible=relaxed),
            gr.update(**choices_of(TOKENS, law, start), visible=of_tokens),
            gr.update(visible=relaxed and not of_tokens),
            gr.update(visible=not of_tokens),
            gr.update(visible=of_tokens),
        )

    return switch

"""The tabs of images and videos: two lanes that fill, both outputs, and whether they are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gradio as gr

from mmspec.methods import decoding_with
from mmspec.web.lanes import markup
from mmspec.web.lanes.cells import layout
from mmspec.web.lanes.pictures import (
    PictureLane,
    PictureRequest,
    identical,
    image_request,
    missing_models,
    offered,
    picture_lanes,
    video_request,
)
from mmspec.web.lanes.pixels import animation, difference_view, enlarged
from mmspec.web.limits import LARGEST_SEED, RefusedRequest, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import LAWS, QUIET, checked_law, law_switch, prompt_row, seed_row, small_handler
from mmspec.web.tabs.lane_tab import LaneReport, LaneTab

FPS = 8.0
MOST_SCORE = 100.0


class ImageTab(LaneTab):
    """Draw an image of a model of the zoo.

    Class attributes:
        models: The titles of the models by name.
        examples: Prompts of the zoo's world.
        prompt_label: The text above the prompt.
        prompt_lines: The lines of the prompt.
        about: What is relaxed in this tab.
        start: The decoding that the tab starts with.
        temperatures: The lowest temperature and the one that the tab starts with.
        temperature_label: The text above the temperature.
        note: A sentence below the controls.
    """

    id = api = "image"
    models: ClassVar[dict[str, str]] = {"t2i": "LlamaGen"}
    examples: ClassVar[tuple[str, ...]] = (
        "a large red star on a navy background",
        "a small cyan circle above a large orange square",
        "a yellow 7",
    )
    prompt_label, prompt_lines = "Prompt", 2
    about = "A token may be taken for its neighbours in the codebook, or in groups."
    start, temperatures, temperature_label, note = (
        decoding_with("usual").name,
        (0.0, 0.0),
        "Temperature (0 is greedy)",
        "",
    )

    def request_controls(self) -> list[Any]:
        return [prompt_row(self.id, self.examples, self.page.limits, self.prompt_label, self.prompt_lines)]

    def setting_controls(self) -> list[Any]:
        self.law, self.warning = law_switch(self.about)
        every = {text: title for law in LAWS for model in self.models for text, title in offered(model, law).items()}
        self.decoding = gr.Dropdown(_choices(every), value=self.start, label="Decoding of the fast lane")
        least, start = self.temperatures
        temperature = gr.Slider(least, 2, start, step=0.05, label=self.temperature_label)
        seed = seed_row()
        if self.note:
            gr.HTML(f'<p class="mm-note">{self.note}</p>', container=False)
        return [self.decoding, self.law, temperature, seed]

    def media_views(self) -> list[Any]:
        slider = gr.ImageSlider(label="Plain (left) against accelerated (right)", show_label=False, interactive=False,
                                format="png", type="pil", elem_id=f"{self.id}-slider", visible=False,
                                buttons=["fullscreen"])  # fmt: skip
        return [slider, gr.HTML(container=False, elem_id=f"{self.id}-difference")]

    def connect(self, line: gr.HTML) -> None:
        gr.on(fn=_switch, inputs=[self.law], outputs=[self.warning, self.decoding], **QUIET)

    def checked(self, prompt, decoding, law, temperature, seed) -> Callable[[], ImageReport]:
        return self.request("t2i", prompt, decoding, law, temperature, seed)

    def request(self, model, prompt, decoding, law, temperature, seed) -> Callable[[], ImageReport]:
        """Check the values; returns a function that loads the model."""
        model, law = checked_choice("model", model, tuple(self.models)), checked_law(law)
        known = offered(model, law)
        if not known:
            raise RefusedRequest(
                f"law: expected exact for the {self.models[model].partition(':')[0]} model, got relaxed, which it does not "
                "have, switch back"
            )
        decoding = checked_choice("decoding", decoding, tuple(known))
        prompt = checked_text("prompt", prompt, self.page.limits)
        plain = {"temperature": checked_number("temperature", temperature, self.temperatures[0], 2)}
        seed = checked_whole("seed", seed, 0, LARGEST_SEED)
        resources = self.page.model_cache.image_resources
        return lambda: ImageReport(image_request(resources(model), prompt, decoding, plain, seed))


class ContinuousTab(ImageTab):
    """Draw an image of continuous tokens by a masked or a causal model."""

    id = api = "continuous"
    models = {"mar": "MAR, masked: tokens in a random order", "car": "causal: tokens in raster order"}
    examples = ("red circle", "blue star", "yellow square")
    prompt_label, prompt_lines = "Class, or for MAR a prompt", 1
    about = "A token is accepted where a ratio of two densities is large enough; only masked models have such a decoding here."
    start, temperatures, temperature_label = "cspd:tolerance=0", (0.05, 1), "Temperature"
    note = "A head that drafts its own steps fills no cell ahead: it saves calls inside each cell."

    def setting_controls(self) -> list[Any]:
        self.model = gr.Radio([(title, name) for name, title in self.models.items()], value="mar", label="Model")
        return [self.model, *super().setting_controls()]

    def connect(self, line: gr.HTML) -> None:
        gr.on(fn=_switch, inputs=[self.law, self.model], outputs=[self.warning, self.decoding], **QUIET)

    def checked(self, prompt, model, decoding, law, temperature, seed) -> Callable[[], ImageReport]:
        return self.request(model, prompt, decoding, law, temperature, seed)


class VideoTab(LaneTab):
    """Draw a video block by block; without a model the tab is one sentence."""

    id = api = "video"
    examples = ("a red circle moves left", "a large blue star moves up", "a small green square moves right")

    def build(self) -> None:
        absent = missing_models()
        if absent is None:
            super().build()
        else:
            gr.HTML(f'<p class="mm-note">{absent}</p>', elem_id=f"{self.id}-absent", container=False)

    def request_controls(self) -> list[Any]:
        return [prompt_row(self.id, self.examples, self.page.limits)]

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
        self.law.change(_show_threshold, self.law, [self.warning, self.threshold], **QUIET)

    def checked(self, prompt, law, threshold, blocks, seed) -> Callable[[], VideoReport]:
        if (absent := missing_models()) is not None:
            raise RefusedRequest(absent)
        relaxed = checked_law(law) == "relaxed"
        prompt = checked_text("prompt", prompt, self.page.limits)
        threshold = checked_number("threshold", threshold, -MOST_SCORE, MOST_SCORE) if relaxed else math.inf
        seed = checked_whole("seed", seed, 0, LARGEST_SEED)
        blocks = checked_whole("blocks", blocks, 1, self.page.limits.blocks)
        resources = self.page.model_cache.video_resources
        return lambda: VideoReport(video_request(resources(), prompt, threshold, blocks, seed))


class PictureReport(LaneReport):
    """Two images or videos of a prompt."""

    def __init__(self, request: PictureRequest):
        self.request = request

    def lanes(self, seconds: float) -> Iterator[tuple[PictureLane, PictureLane]]:
        return picture_lanes(self.request, seconds)

    def same(self, plain: PictureLane, fast: PictureLane) -> bool:
        return identical(plain, fast)

    def summary(self) -> str:
        return f"seed {self.request.seed}"


class ImageReport(PictureReport):
    """Two images of a prompt."""

    unit, legend = "tokens", ("accepted", "corrected", "own", "drafted")

    def __init__(self, request: PictureRequest):
        super().__init__(request)
        self.layout = layout(request.pipe)

    def view(self, lane: PictureLane) -> str:
        return markup.grid(lane, *self.layout)

    def progress(self, lane: PictureLane) -> tuple[str, float]:
        filled, total = sum(lane.stats.emitted) if lane.stats else 0, self.layout[0] * self.layout[1]
        return f"{filled} of {total} tokens", filled / total

    def figures(self, lane: PictureLane) -> dict[str, Any]:
        return markup.figures(lane) | ({} if lane.head_calls is None else {"head_calls": lane.head_calls})

    def media(self, plain: PictureLane, fast: PictureLane) -> tuple:
        both = (enlarged(plain.output), enlarged(fast.output))
        return gr.update(value=both, visible=True), difference_view(plain.output, fast.output)


class VideoReport(PictureReport):
    """Two videos of a prompt."""

    unit = "blocks"

    def view(self, lane: PictureLane) -> str:
        shown = "" if lane.output is None else animation(lane.output, FPS, f"the video of {lane.title}")
        return shown + markup.block_tiles(lane)

    def progress(self, lane: PictureLane) -> tuple[str, float]:
        done = len(lane.rounds)
        return f"block {done} of {lane.blocks}", done / max(lane.blocks, 1)

    def figures(self, lane: PictureLane) -> dict[str, Any]:
        blocks = [
            {"block": number, "route": name, "score": score, "seconds": round(one.seconds, 4)}
            for one in lane.rounds
            for number, name, score in one.marks["blocks"]
        ]
        return markup.figures(lane) | {"blocks": blocks}


def _choices(decodings: dict[str, str]) -> list[tuple[str, str]]:
    return [(title, text) for text, title in decodings.items()]


@small_handler
def _switch(law: Any, model: Any = "t2i") -> tuple[Any, Any]:
    law = checked_law(law)
    choices = _choices(offered(checked_choice("model", model, (*ImageTab.models, *ContinuousTab.models)), law))
    value = choices[0][1] if choices else None
    return gr.update(visible=law == "relaxed"), gr.update(choices=choices, value=value)


@small_handler
def _show_threshold(law: Any) -> tuple[Any, Any]:
    relaxed = checked_law(law) == "relaxed"
    return gr.update(visible=relaxed), gr.update(visible=relaxed)

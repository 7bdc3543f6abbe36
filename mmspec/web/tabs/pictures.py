"""The tab of images: two grids that fill, both pictures, and their difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gradio as gr

from mmspec.methods import decoding_with
from mmspec.web.lanes import markup
from mmspec.web.lanes.cells import layout
from mmspec.web.lanes.decodings import offered
from mmspec.web.lanes.pictures import PictureLane, PictureRequest, identical, image_request, picture_lanes
from mmspec.web.lanes.pixels import difference_view, embedded, enlarged, sampled_view
from mmspec.web.limits import LARGEST_SEED, RefusedRequest, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import LAWS, QUIET, checked_law, law_switch, prompt_row, seed_row, small_handler
from mmspec.web.tabs.lane_tab import LaneReport, LaneTab

PICTURE_CAPTION = "Look whether the picture shows the prompt: its colour, its shape and its size."


class ImageTab(LaneTab):
    """Draw an image with a model of the zoo. `about` is a sentence on the relaxed methods. `start` is the default
    decoding. `temperatures` are the lowest and the default. `note` stands below the settings."""

    id = api = "image"
    models: ClassVar[dict[str, str]] = {"t2i": "LlamaGen"}  # titles by name
    examples: ClassVar[tuple[str, ...]] = (
        "a large red star on a navy background",
        "a large yellow heart",
        "a large purple triangle",
    )  # prompts that the models draw correctly at temperature 1
    prompt_label, prompt_lines = "Prompt", 2
    about = "The rule may accept a neighbour of a token in the codebook, or judge tokens in groups."
    start, temperatures, temperature_label, note = (
        decoding_with("usual").name,
        (0.0, 1.0),
        "Temperature (0 is greedy)",
        "",
    )

    def request_controls(self) -> list[Any]:
        return [prompt_row(self.id, self.examples, self.page.limits, self.prompt_label, self.prompt_lines)]

    def setting_controls(self) -> list[Any]:
        self.law, self.warning = law_switch(self.about)
        every = {text: title for law in LAWS for model in self.models for text, title in offered(model, law).items()}
        self.decoding = gr.Dropdown(
            [(title, text) for text, title in every.items()], value=self.start, label="Decoding of the fast lane"
        )
        least, start = self.temperatures
        temperature = gr.Slider(least, 2, start, step=0.05, label=self.temperature_label)
        seed = seed_row()
        if self.note:
            gr.HTML(f'<p class="mm-note">{self.note}</p>', container=False)
        return [self.decoding, self.law, temperature, seed]

    def media_views(self) -> list[Any]:
        slider = gr.ImageSlider(
            label="Plain (left) against accelerated (right)",
            show_label=False,
            interactive=False,
            format="png",
            type="pil",
            elem_id=f"{self.id}-slider",
            visible=False,
            buttons=["fullscreen"],
        )
        return [slider, gr.HTML(container=False, elem_id=f"{self.id}-difference")]

    def connect(self, outputs: list[Any], cleared: list[Any]) -> None:
        gr.on(fn=_switch(self.start), inputs=[self.law], outputs=[self.warning, self.decoding], **QUIET)

    def checked(self, prompt, decoding, law, temperature, seed) -> Callable[[], ImageReport]:
        return self.request("t2i", prompt, decoding, law, temperature, seed)

    def request(self, model, prompt, decoding, law, temperature, seed) -> Callable[[], ImageReport]:
        """Check the values and return a function that loads the model."""
        model, law = checked_choice("model", model, tuple(self.models)), checked_law(law)
        known = offered(model, law)
        if not known:
            raise RefusedRequest(
                f"law: expected exact for the {self.models[model].partition(':')[0]} model, got relaxed, for which it has no "
                "method, switch back"
            )
        decoding = checked_choice("decoding", decoding, tuple(known))
        prompt = checked_text("prompt", prompt, self.page.limits)
        plain = {"temperature": checked_number("temperature", temperature, self.temperatures[0], 2)}
        seed = checked_whole("seed", seed, 0, LARGEST_SEED)
        resources = self.page.model_cache.image_resources
        return lambda: ImageReport(image_request(resources(model), prompt, decoding, plain, seed))


class ContinuousTab(ImageTab):
    """Draw an image of continuous tokens with a masked or a causal model."""

    id = api = "continuous"
    models = {"car": "causal: tokens in raster order", "mar": "MAR, masked: tokens in a random order"}
    examples = ("red heart", "orange square", "red circle")
    prompt_label, prompt_lines = "Class, or for MAR a prompt", 1
    about = "The rule accepts a token if a ratio of two densities is large enough. Only the masked model has such a decoding."
    start, temperatures, temperature_label = "head:window=32", (0.05, 1), "Temperature"
    note = "Speculation over head time fills no cell ahead: it saves calls of the diffusion head inside each cell."

    def setting_controls(self) -> list[Any]:
        self.model = gr.Radio([(title, name) for name, title in self.models.items()], value="car", label="Model")
        return [self.model, *super().setting_controls()]

    def connect(self, outputs: list[Any], cleared: list[Any]) -> None:
        gr.on(fn=_switch(self.start), inputs=[self.law, self.model], outputs=[self.warning, self.decoding], **QUIET)

    def checked(self, prompt, model, decoding, law, temperature, seed) -> Callable[[], ImageReport]:
        return self.request(model, prompt, decoding, law, temperature, seed)


class PictureReport(LaneReport):
    """Two images or videos of a request."""

    def __init__(self, request: PictureRequest):
        self.request = request

    def lanes(self, seconds: float) -> Iterator[tuple[PictureLane, PictureLane]]:
        return picture_lanes(self.request, seconds)

    def same(self, plain: PictureLane, fast: PictureLane) -> bool:
        return identical(plain, fast)

    def summary(self) -> str:
        return f"seed {self.request.seed}"

    def code(self) -> str:
        return self.request.code

    def warning(self) -> str:
        if not (words := self.request.unknown):
            return ""
        listed = ", ".join(f'"{word}"' for word in words)
        return markup.warning(
            f"The model does not know {listed} and draws the rest of the prompt; pick an example for a prompt that works."
        )


class ImageReport(PictureReport):
    unit, legend = "tokens", ("accepted", "corrected", "own", "drafted")

    def __init__(self, request: PictureRequest):
        super().__init__(request)
        self.layout = layout(request.pipe)

    @property
    def is_sampled(self) -> bool:
        """Return whether both lanes draw their own samples, so that their pictures differ."""
        return self.request.plain.get("temperature", 1) > 0

    def view(self, lane: PictureLane) -> str:
        return self.picture(lane) + markup.grid(lane, *self.layout)

    def picture(self, lane: PictureLane) -> str:
        if lane.output is None:
            return ""
        return embedded(enlarged(lane.output), f"the picture of {lane.title}") + markup.caption(PICTURE_CAPTION)

    def captions(self, fast: PictureLane) -> tuple[str, str]:
        has_drafts = not fast.rounds or any(round_.marks.get("drafted") for round_ in fast.rounds)
        return (
            "Plain decoding: the model fills the cells without drafts.",
            "Look at the green cells: they were drafted and accepted, several per pass of the model."
            if has_drafts
            else "The drafts are steps inside each cell, so no cell is green: look at the number of head calls above.",
        )

    def progress(self, lane: PictureLane) -> tuple[str, float]:
        filled, total = sum(lane.stats.emitted) if lane.stats else 0, self.layout[0] * self.layout[1]
        return f"{filled} of {total} tokens", filled / total

    def figures(self, lane: PictureLane) -> dict[str, Any]:
        return markup.figures(lane) | ({} if lane.head_calls is None else {"head_calls": lane.head_calls})

    def head_calls(self, plain: PictureLane, fast: PictureLane) -> tuple[int, int] | None:
        saves_passes = fast.stats.target_passes < plain.stats.target_passes
        return None if plain.head_calls is None or saves_passes else (plain.head_calls, fast.head_calls)

    def media(self, plain: PictureLane, fast: PictureLane) -> tuple:
        if self.is_sampled and not self.same(plain, fast):
            return gr.update(value=None, visible=False), sampled_view()
        both = (enlarged(plain.output), enlarged(fast.output))
        return gr.update(value=both, visible=True), difference_view(plain.output, fast.output)


def choices_of(model: str, law: str, start: str) -> dict[str, Any]:
    """Return the arguments of a dropdown with the "exact" or "relaxed" decodings of a model; `start` is its value if it
    is offered."""
    decodings = offered(model, law)
    value = start if start in decodings else next(iter(decodings), None)
    return {"choices": [(title, text) for text, title in decodings.items()], "value": value}


def _switch(start: str) -> Callable[..., tuple[Any, Any]]:
    """Return the handler that follows the switch and the model of a tab."""

    @small_handler
    def switch(law: Any, model: Any = "t2i") -> tuple[Any, Any]:
        law, model = checked_law(law), checked_choice("model", model, (*ImageTab.models, *ContinuousTab.models))
        return gr.update(visible=law == "relaxed"), gr.update(**choices_of(model, law, start))

    return switch

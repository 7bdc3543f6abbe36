"""The tab of vision-language models: a picture, a question, and two lanes of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from mmspec.io.files import replacing
from mmspec.web.lanes import markup
from mmspec.web.lanes.pixels import enlarged
from mmspec.web.lanes.vlm import VlmLane, VlmLaneRequest, identical, offered, vlm_lanes
from mmspec.web.limits import LARGEST_SEED, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import QUIET, READY, UNCHECKED, checked_law, law_switch, seed_row, small_handler
from mmspec.web.tabs.lane_tab import LaneReport, LaneTab
from mmspec.web.uploads import open_uploaded

LONGEST = 192
PREVIEW_SIDE = 768  # pixels of the longer side of a shown picture
QUESTIONS = ("Describe this picture in detail.", "What do you see in this picture?", "List the objects.")


class VlmTab(LaneTab):
    """Ask about a picture of the visitor or of the zoo's world."""

    id, api, button = "vlm", "caption", "Ask"

    def request_controls(self) -> list[Any]:
        self.file = gr.File(label="Picture: PNG, JPEG or WebP", elem_id=f"{self.id}-picture", height=120)
        self.seen = gr.Image(interactive=False, visible=False, label="The picture as the model sees it", show_label=False,
                             height=200, buttons=[], format="png", elem_id=f"{self.id}-seen")  # fmt: skip
        gr.HTML('<p class="mm-label">Or pick one from the zoo\'s world</p>', container=False)
        self.examples = gr.Gallery([picture for picture, _ in _examples()], columns=3, height=120, show_label=False,
                                   label="Pictures of the zoo's world", allow_preview=False, object_fit="contain",
                                   buttons=[], interactive=False, elem_id=f"{self.id}-examples")  # fmt: skip
        self.question = gr.Textbox(
            QUESTIONS[0],
            label="Question",
            lines=2,
            max_length=self.page.limits.characters,
            elem_id=f"{self.id}-question",
        )
        return [self.file, self.question]

    def setting_controls(self) -> list[Any]:
        self.law, self.warning = law_switch(
            "Answers use typical acceptance, which keeps every token that the model finds plausible; at temperature 0 it "
            "changes nothing."
        )
        self.drafter = gr.Dropdown(offered("exact"), value="msd", label="Drafter")
        with gr.Accordion("Sampling and length", open=False):
            self.temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature (0 is greedy)")
            tokens = gr.Slider(1, self.page.limits.tokens, LONGEST, step=1, label="Longest answer, in tokens")
        return [self.drafter, self.law, self.temperature, seed_row(), tokens]

    def connect(self, line: gr.HTML) -> None:
        self.examples.select(self._picker(), outputs=[self.file, self.question], **QUIET)
        self.file.change(self._preview(), self.file, [self.seen, line], api_visibility="private", concurrency_id="gate",
                         concurrency_limit=2, show_progress="hidden", **UNCHECKED)  # fmt: skip
        self.law.change(_switch, self.law, [self.warning, self.drafter, self.temperature], **QUIET)

    def checked(self, file, text, drafter, law, temperature, seed, tokens) -> Callable[[], VlmReport]:
        limits, law = self.page.limits, checked_law(law)
        request = VlmLaneRequest(
            open_uploaded(file, self.page.uploads, limits),
            checked_text("question", text, limits),
            checked_choice("drafter", drafter, tuple(name for _, name in offered(law))),
            law,
            checked_number("temperature", temperature, 0, 2),
            checked_whole("seed", seed, 0, LARGEST_SEED),
            checked_whole("length", tokens, 1, limits.tokens),
        )
        return lambda: VlmReport(self.page.model_cache.vlm_resources(), request)

    def _picker(self) -> Callable[..., tuple[str, str]]:
        """Puts an example where a visitor's own picture would be."""

        @small_handler
        def pick(event: gr.SelectData) -> tuple[str, str]:
            number = checked_whole("example", event.index, 0, len(QUESTIONS) - 1)
            picture, question = _examples()[number]
            path = self.page.uploads / f"example-{number + 1}.png"
            with replacing(path) as temporary:
                picture.save(temporary)
            return str(path), question

        return pick

    def _preview(self) -> Callable[..., tuple[Any, str]]:
        """Shows a picture as the gate lets it in, or the reason why it does not."""

        @small_handler
        def show(file: Any) -> tuple[Any, str]:
            if file is None:
                return gr.update(value=None, visible=False), markup.status(READY)
            try:
                picture = open_uploaded(file, self.page.uploads, self.page.limits)
            except ValueError as error:
                return gr.update(value=None, visible=False), markup.status(str(error), "refused")
            picture.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
            return gr.update(value=enlarged(picture), visible=True), markup.status(READY)

        return show


class VlmReport(LaneReport):
    """Two answers to a question."""

    unit, legend = "tokens", ("accepted", "own")

    def __init__(self, resources: Any, request: VlmLaneRequest):
        self.resources, self.request = resources, request

    def lanes(self, seconds: float) -> Iterator[tuple[VlmLane, VlmLane]]:
        return vlm_lanes(self.resources, self.request, seconds)

    def view(self, lane: VlmLane) -> str:
        return markup.text(lane)

    def progress(self, lane: VlmLane) -> tuple[str, float]:
        return f"{len(lane.ids)} tokens", min(len(lane.ids) / self.request.tokens, 1)

    def same(self, plain: VlmLane, fast: VlmLane) -> bool:
        return identical(plain, fast)

    def summary(self) -> str:
        return f"seed {self.request.seed}, temperature {self.request.temperature:g}"

    def figures(self, lane: VlmLane) -> dict[str, Any]:
        return markup.figures(lane) | {"text": lane.text.strip()}


@small_handler
def _switch(law: Any) -> tuple[Any, Any, Any]:
    choices = offered(checked_law(law))
    relaxed = law == "relaxed"
    return gr.update(visible=relaxed), gr.update(choices=choices, value=choices[0][1]), 1.0 if relaxed else 0.0


def _examples() -> list[tuple[Any, str]]:
    """Pictures that no training saw, each with a question."""
    from mmspec.evaluate.vlm.requests import demo_scenes
    from mmspec.zoo.world.render import render

    return [(render(scene), question) for scene, question in zip(demo_scenes(len(QUESTIONS)), QUESTIONS, strict=True)]

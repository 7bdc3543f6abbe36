"""The tab of vision-language models: a picture, a question, and two lanes of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from mmspec.io.files import replacing
from mmspec.web.lanes import markup
from mmspec.web.lanes.vlm import VlmLane, VlmLaneRequest, identical, offered, recommended, vlm_lanes
from mmspec.web.limits import LARGEST_SEED, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import QUIET, READY, UNCHECKED, checked_law, law_switch, seed_row, small_handler
from mmspec.web.tabs.lane_tab import LaneReport, LaneTab
from mmspec.web.uploads import open_uploaded

LONGEST = 192
QUESTIONS = ("Describe this picture in detail.", "What do you see in this picture?", "List the objects.")


class VlmTab(LaneTab):
    """Ask a question about an uploaded picture or a picture of the zoo's world."""

    id, api, button = "vlm", "caption", "Ask"

    def request_controls(self) -> list[Any]:
        gr.HTML('<p class="mm-label">Picture: PNG, JPEG or WebP</p>', container=False)
        self.file = gr.Image(
            label="Picture: PNG, JPEG or WebP",
            show_label=False,
            type="filepath",
            sources=["upload", "clipboard"],
            height=220,
            buttons=["fullscreen"],
            elem_id=f"{self.id}-picture",
        )
        gr.HTML('<p class="mm-label">Or pick a picture of the zoo\'s world</p>', container=False)
        self.examples = gr.Gallery(
            [picture for picture, _ in _examples()],
            columns=3,
            height=110,
            show_label=False,
            label="Pictures of the zoo's world",
            allow_preview=False,
            object_fit="contain",
            buttons=[],
            interactive=False,
            elem_id=f"{self.id}-examples",
        )
        self.question = gr.Textbox(
            QUESTIONS[0],
            label="Question",
            lines=2,
            max_length=self.page.limits.characters,
            elem_id=f"{self.id}-question",
        )
        return [self.file, self.question]

    def setting_controls(self) -> list[Any]:
        self.drafter = gr.Dropdown(offered("exact"), value=recommended(), label="Drafter")
        self.law, self.warning = law_switch(
            "Answers use typical acceptance, which accepts every token that the model finds plausible; at temperature 0 it "
            "changes nothing."
        )
        self.temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature (0 is greedy)")
        tokens = gr.Slider(1, self.page.limits.tokens, LONGEST, step=1, label="Longest answer, in tokens")
        return [self.drafter, self.law, self.temperature, seed_row(), tokens]

    def connect(self, outputs: list[Any], cleared: list[Any]) -> None:
        self.examples.select(self._picker(), outputs=[self.file, self.question], **QUIET)
        self.file.upload(
            self._gate(cleared),
            self.file,
            [self.file, *outputs],
            api_visibility="private",
            concurrency_id="gate",
            concurrency_limit=2,
            show_progress="hidden",
            **UNCHECKED,
        )
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
        """Return the handler that takes an example in the place of an upload."""

        @small_handler
        def pick(event: gr.SelectData) -> tuple[str, str]:
            number = checked_whole("example", event.index, 0, len(QUESTIONS) - 1)
            picture, question = _examples()[number]
            path = self.page.uploads / f"example-{number + 1}.png"
            with replacing(path) as temporary:
                picture.save(temporary)
            return str(path), question

        return pick

    def _gate(self, cleared: list[Any]) -> Callable[..., tuple]:
        """Return the handler of an upload: it removes a refused picture and an earlier result, and shows the reason."""

        @small_handler
        def check(file: Any) -> tuple:
            try:
                open_uploaded(file, self.page.uploads, self.page.limits)
            except ValueError as error:
                return None, markup.status(str(error), "refused"), *cleared
            return gr.skip(), markup.status(READY), *[gr.skip()] * len(cleared)

        return check


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

    def code(self) -> str:
        return self.request.code()

    def captions(self, fast: VlmLane) -> tuple[str, str]:
        return (
            "Plain decoding: the model runs once for every token.",
            "Look at the green tokens: they were drafted and accepted, so a pass of the model gave several of them.",
        )

    def figures(self, lane: VlmLane) -> dict[str, Any]:
        return markup.figures(lane) | {"text": lane.text.strip()}


@small_handler
def _switch(law: Any) -> tuple[Any, Any, Any]:
    choices = offered(checked_law(law))
    relaxed = law == "relaxed"
    return gr.update(visible=relaxed), gr.update(choices=choices, value=choices[0][1]), 1.0 if relaxed else 0.0


def _examples() -> list[tuple[Any, str]]:
    """Return pictures outside the training data, each with a question."""
    from mmspec.run.scenes import demo_scenes
    from mmspec.zoo.world.render import render

    return [(render(scene), question) for scene, question in zip(demo_scenes(len(QUESTIONS)), QUESTIONS, strict=True)]

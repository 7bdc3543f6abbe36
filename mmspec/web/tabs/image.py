"""The image tab: a grid of discrete tokens that fills twice, both images, and whether they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gradio as gr

from mmspec.methods import decoding_with, names
from mmspec.web.lanes import markup
from mmspec.web.lanes.image import ImageLane, ImageLaneRequest, image_lanes, layout, same_tokens
from mmspec.web.lanes.pixels import difference_view, enlarged
from mmspec.web.limits import LARGEST_SEED, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import QUIET, checked_law, law_switch, prompt_row, seed_row, small_handler
from mmspec.web.tabs.lane_tab import LaneReport, LaneTab

MODEL = "t2i"
_NOT_OFFERED = ("ar", "auto")  # the other lane, and what stands for another
EXAMPLES = ("a large red star on a navy background", "a small cyan circle above a large orange square", "a yellow 7")


class PictureTab(LaneTab):
    """A tab whose lanes end in an image each."""

    def media_views(self) -> list[Any]:
        slider = gr.ImageSlider(label="Plain (left) against accelerated (right)", show_label=False, interactive=False,
                                format="png", type="pil", elem_id=f"{self.id}-slider", visible=False,
                                buttons=["fullscreen"])  # fmt: skip
        return [slider, gr.HTML(container=False, elem_id=f"{self.id}-difference")]


class ImageTab(PictureTab):
    """Draw an image of discrete tokens."""

    id = api = "image"

    def request_controls(self) -> list[Any]:
        return [prompt_row(self.id, EXAMPLES, self.page.limits)]

    def setting_controls(self) -> list[Any]:
        self.law, self.warning = law_switch("A token may be taken for its neighbours in the codebook, or in groups.")
        self.decoding = gr.Dropdown(
            offered("exact") + offered("relaxed"),
            value=decoding_with("usual").name,
            label="Decoding of the fast lane",
        )
        temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature (0 is greedy)")
        return [self.decoding, self.law, temperature, seed_row()]

    def connect(self, line: gr.HTML) -> None:
        gr.on(fn=_switch, inputs=[self.law], outputs=[self.warning, self.decoding], **QUIET)

    def checked(self, prompt, decoding, law, temperature, seed) -> Callable[[], PictureReport]:
        law = checked_law(law)
        return partial(
            self._load,
            law,
            checked_choice("decoding", decoding, tuple(name for _, name in offered(law))),
            checked_text("prompt", prompt, self.page.limits),
            checked_number("temperature", temperature, 0, 2),
            checked_whole("seed", seed, 0, LARGEST_SEED),
        )

    def _load(self, law: str, decoding: str, prompt: str, temperature: float, seed: int) -> PictureReport:
        from mmspec.evaluate.image.decodings import decoding_of

        resources = self.page.model_cache.image_resources(MODEL)
        (given,) = resources.given([prompt])
        drafter, rule = decoding_of(decoding).make(resources)
        plain = {"temperature": temperature}
        fast = {**plain, "decoding": drafter, "rule": resources.rule(rule)}
        title = drafter.name if law == "exact" else f"{drafter.name}, {decoding}"
        return PictureReport(resources.pipeline, ImageLaneRequest(given, plain, fast, title, seed))


class PictureReport(LaneReport):
    """Two images of a prompt."""

    unit, legend = "tokens", ("accepted", "corrected", "own", "drafted")

    def __init__(self, pipe: Any, request: ImageLaneRequest):
        self.pipe, self.request = pipe, request
        self.layout = layout(pipe)

    def lanes(self, seconds: float) -> Iterator[tuple[ImageLane, ImageLane]]:
        return image_lanes(self.pipe, self.request, seconds)

    def view(self, lane: ImageLane) -> str:
        return markup.grid(lane, *self.layout)

    def progress(self, lane: ImageLane) -> tuple[str, float]:
        filled, total = sum(lane.stats.emitted) if lane.stats else 0, self.layout[0] * self.layout[1]
        return f"{filled} of {total} tokens", filled / total

    def same(self, plain: ImageLane, fast: ImageLane) -> bool:
        return same_tokens(plain, fast)

    def summary(self) -> str:
        return f"seed {self.request.seed}"

    def figures(self, lane: ImageLane) -> dict[str, Any]:
        return markup.figures(lane) | ({} if lane.head_calls is None else {"head_calls": lane.head_calls})

    def media(self, plain: ImageLane, fast: ImageLane) -> tuple:
        both = (enlarged(plain.picture), enlarged(fast.picture))
        return gr.update(value=both, visible=True), difference_view(plain.picture, fast.picture)


def offered(law: str) -> list[tuple[str, str]]:
    """(title, name) of the decodings of a law: those in raster order, whose rounds fill what the grid shows."""
    from mmspec.evaluate.image.decodings import decoding_names, decoding_of

    exact = [name for name in names("image", "decoding", exact=True) if name not in _NOT_OFFERED]
    chosen = (
        exact if law == "exact" else [name for name in decoding_names() if name in names("image", "rule", exact=False)]
    )
    return [(f"{name}: {decoding_of(name).about}", name) for name in chosen]


@small_handler
def _switch(law: Any) -> tuple[Any, Any]:
    choices = offered(checked_law(law))
    return gr.update(visible=law == "relaxed"), gr.update(choices=choices, value=choices[0][1])

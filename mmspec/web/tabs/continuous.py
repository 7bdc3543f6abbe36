"""The tab of continuous tokens, drawn by a masked and by a causal model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from mmspec import zoo
from mmspec.web.lanes.image import ImageLaneRequest
from mmspec.web.limits import LARGEST_SEED, RefusedRequest, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import QUIET, checked_law, law_switch, prompt_row, seed_row, small_handler
from mmspec.web.tabs.image import PictureReport, PictureTab

MODELS = {"mar": "MAR, masked: tokens in a random order", "car": "causal: tokens in raster order"}
EXAMPLES = ("red circle", "blue star", "yellow square")


@dataclass(frozen=True, slots=True)
class OfferedDecoding:
    """A decoding of the fast lane.

    Args:
        title: The text of the choice.
        model: The zoo's model that it draws with.
        law: "exact" or "relaxed".
        decoding: Its name.
        wishes: Its settings.
    """

    title: str
    model: str
    law: str
    decoding: str
    wishes: dict[str, Any]

    @property
    def is_here(self) -> bool:
        """Whether the zoo has the weights of its drafter; those of the causal model are built on demand."""
        return self.decoding == "head" or f"{self.model}/draft" in zoo.names()


OFFERED_DECODINGS = {
    "cspd-0": OfferedDecoding(
        "CSpD, tolerance 0: plain decoding bit for bit", "mar", "exact", "cspd", {"tolerance": 0.0}
    ),
    "head": OfferedDecoding("the head drafts its own denoising steps", "mar", "exact", "head", {}),
    "patch": OfferedDecoding("CSpD, patched windows", "mar", "relaxed", "cspd", {"window": "patch"}),
    "truncate": OfferedDecoding("CSpD, truncated windows", "mar", "relaxed", "cspd", {"window": "truncate"}),
    "small": OfferedDecoding("a smaller model, block verification of Gaussians", "car", "exact", "small", {}),
    "reflection": OfferedDecoding(
        "a smaller model, reflection coupling", "car", "exact", "small", {"rule": "reflection"}
    ),
    "car-head": OfferedDecoding("the head drafts its own denoising steps", "car", "exact", "head", {}),
}


class ContinuousTab(PictureTab):
    """Draw an image of continuous tokens."""

    id = api = "continuous"

    def request_controls(self) -> list[Any]:
        return [prompt_row(self.id, EXAMPLES, self.page.limits, "Class, or for MAR a prompt", lines=1)]

    def setting_controls(self) -> list[Any]:
        self.model = gr.Radio([(title, name) for name, title in MODELS.items()], value="mar", label="Model")
        self.law, self.warning = law_switch(
            "A token is accepted where a ratio of two densities is large enough; only masked models have such a decoding "
            "here."
        )
        self.way = gr.Dropdown(
            [(one.title, name) for name, one in OFFERED_DECODINGS.items() if one.is_here],
            value="cspd-0",
            label="Decoding of the fast lane",
        )
        temperature = gr.Slider(0.05, 2, 1, step=0.05, label="Temperature")
        seed = seed_row()
        gr.HTML(
            '<p class="mm-note">A head that drafts its own steps fills no cell ahead: it saves calls inside each cell.</p>',
            container=False,
        )
        return [self.model, self.way, self.law, temperature, seed]

    def connect(self, line: gr.HTML) -> None:
        gr.on(fn=_switch, inputs=[self.model, self.law], outputs=[self.warning, self.way], **QUIET)

    def checked(self, prompt, model, way, law, temperature, seed) -> Callable[[], PictureReport]:
        model, law = checked_choice("model", model, tuple(MODELS)), checked_law(law)
        if not offered(model, law):
            raise RefusedRequest(
                "law: expected exact for the causal model, got relaxed, which only masked models have, switch back"
            )
        return partial(
            self._load,
            model,
            OFFERED_DECODINGS[checked_choice("decoding", way, tuple(name for _, name in offered(model, law)))],
            checked_text("prompt", prompt, self.page.limits),
            {"temperature": checked_number("temperature", temperature, 0.05, 2)},
            checked_whole("seed", seed, 0, LARGEST_SEED),
        )

    def _load(self, model: str, way: OfferedDecoding, prompt: str, plain: dict[str, Any], seed: int) -> PictureReport:
        from mmspec.evaluate.continuous.decodings import decoding_of

        resources = self.page.model_cache.continuous_resources(model)
        (given,) = resources.given([prompt])
        fast = plain | decoding_of(way.decoding, resources, way.wishes)
        return PictureReport(resources.pipeline, ImageLaneRequest(given, plain, fast, way.title, seed))


def offered(model: str, law: str) -> list[tuple[str, str]]:
    """(title, name) of the decodings of a model under a law, of which the weights are here."""
    return [
        (way.title, name)
        for name, way in OFFERED_DECODINGS.items()
        if (way.model, way.law) == (model, law) and way.is_here
    ]


@small_handler
def _switch(model: Any, law: Any) -> tuple[Any, Any]:
    choices = offered(checked_choice("model", model, tuple(MODELS)), checked_law(law))
    return gr.update(visible=law == "relaxed"), gr.update(choices=choices, value=choices[0][1] if choices else None)

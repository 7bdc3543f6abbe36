"""The tab of continuous images: tokens that are vectors, drawn by a masked and by a causal model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mmspec import zoo
from mmspec.web.lanes.image import ImageLaneRequest
from mmspec.web.limits import LARGEST_SEED, RefusedRequest, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import (
    ALONE,
    QUIET,
    PageContext,
    cancels,
    checked_law,
    handler,
    law_switch,
    prompt_row,
    run_row,
    seed_row,
    small_handler,
    status_line,
)
from mmspec.web.tabs.image import image_outputs, picture_view

ID = "vectors"
MODELS = {"mar": "MAR, masked: tokens in a random order", "car": "causal: tokens in raster order"}
EXAMPLES = ("red circle", "blue star", "yellow square")


@dataclass(frozen=True, slots=True)
class OfferedDecoding:
    """A decoding of the fast lane.

    Args:
        title: The text of the choice.
        model: The zoo's model that it draws with.
        law: "exact" or "relaxed".
        decoding: Its name in `mmspec.evaluate.continuous.decodings`.
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


def continuous_tab(bench: PageContext) -> None:
    """Builds the tab."""
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            prompt = prompt_row(ID, EXAMPLES, bench.limits, "Class, or for MAR a prompt", lines=1)
            run, cancel = run_row(ID, "Draw")
            line = status_line(ID)
            model = gr.Radio([(title, name) for name, title in MODELS.items()], value="mar", label="Model")
            law, warning = law_switch("Vectors are taken where a ratio of two walks is large enough; only masked models have "
                                      "such a decoding here.")  # fmt: skip
            way = gr.Dropdown(
                [(one.title, name) for name, one in OFFERED_DECODINGS.items() if one.is_here],
                value="cspd-0",
                label="Decoding of the fast lane",
            )
            temperature = gr.Slider(0.05, 2, 1, step=0.05, label="Temperature")
            seed = seed_row()
            gr.HTML('<p class="mm-note">A head that drafts its own steps fills no cell ahead: what it saves are the calls '
                    "inside each cell.</p>", container=False)  # fmt: skip
        with gr.Column(scale=2, min_width=280):
            view = picture_view(ID)
    gr.on(fn=_switch, inputs=[model, law], outputs=[warning, way], **QUIET)
    event = run.click(_handler(bench), [prompt, model, way, law, temperature, seed], [line, *view.outputs],
                      api_name="continuous", show_progress="hidden", **ALONE)  # fmt: skip
    cancels(cancel, event, line)


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


def _handler(bench: PageContext) -> Any:
    @handler(rest=6)
    def draw(prompt, model, way, law, temperature, seed) -> Iterator[tuple]:
        from mmspec.evaluate.continuous.decodings import ContinuousDecodingOverrides, decoding_of

        model, law = checked_choice("model", model, tuple(MODELS)), checked_law(law)
        if not offered(model, law):
            raise RefusedRequest(
                "law: expected exact for the causal model, got relaxed, which only masked models have, switch back"
            )
        chosen = OFFERED_DECODINGS[checked_choice("decoding", way, tuple(name for _, name in offered(model, law)))]
        prompt = checked_text("prompt", prompt, bench.limits)
        plain = {"temperature": checked_number("temperature", temperature, 0.05, 2)}
        seed = checked_whole("seed", seed, 0, LARGEST_SEED)
        resources = bench.shelf.continuous_resources(model)
        (given,) = resources.given([prompt])
        fast = plain | decoding_of(chosen.decoding, resources, ContinuousDecodingOverrides(**chosen.wishes))
        wish = ImageLaneRequest(given, plain, fast, chosen.title, seed)
        yield from image_outputs(resources.pipeline, wish, bench.limits.seconds, "vectors")

    return draw

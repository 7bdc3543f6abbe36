"""The image tab: a prompt, and a grid of codes that fills twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from mmspec.web.limits import LARGEST_SEED, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.runs.pictures import Wish
from mmspec.web.tabs.drawn import drawn_outputs, picture_view
from mmspec.web.tabs.shared import (
    ALONE,
    QUIET,
    Bench,
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

ID = "image"
MODEL = "t2i"
# in raster order, whose rounds fill what the grid shows
OFFERED = {"exact": ("scd", "sjd", "pac", "rows", "eagle"), "relaxed": ("lantern", "gsd", "cool")}
EXAMPLES = ("a large red star on a navy background", "a small cyan circle above a large orange square", "a yellow 7")


def codes_tab(bench: Bench) -> None:
    """Builds the tab."""
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            prompt = prompt_row(ID, EXAMPLES, bench.limits)
            run, cancel = run_row(ID, "Draw")
            line = status_line(ID)
            law, warning = law_switch("Codes may be taken for their neighbours in the codebook, or in groups.")
            decoding = gr.Dropdown(
                offered("exact") + offered("relaxed"), value="scd", label="Decoding of the fast lane"
            )
            temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature (0 is greedy)")
            seed = seed_row()
        with gr.Column(scale=2, min_width=280):
            view = picture_view(ID)
    gr.on(fn=_switch, inputs=[law], outputs=[warning, decoding], **QUIET)
    event = run.click(_handler(bench), [prompt, decoding, law, temperature, seed], [line, *view.outputs], api_name="image",
                      show_progress="hidden", **ALONE)  # fmt: skip
    cancels(cancel, event, line)


def offered(law: str) -> list[tuple[str, str]]:
    """(title, name) of the decodings of a law."""
    from mmspec.evaluate.image.decodings import DECODINGS

    return [(f"{name}: {DECODINGS[name].about}", name) for name in OFFERED[law]]


@small_handler
def _switch(law: Any) -> tuple[Any, Any]:
    choices = offered(checked_law(law))
    return gr.update(visible=law == "relaxed"), gr.update(choices=choices, value=choices[0][1])


def _handler(bench: Bench) -> Any:
    @handler(rest=6)
    def draw(prompt, decoding, law, temperature, seed) -> Iterator[tuple]:
        from mmspec.evaluate.image.decodings import decoding_of

        law = checked_law(law)
        decoding = checked_choice("decoding", decoding, OFFERED[law])
        prompt = checked_text("prompt", prompt, bench.limits)
        plain = {"temperature": checked_number("temperature", temperature, 0, 2)}
        seed = checked_whole("seed", seed, 0, LARGEST_SEED)
        resources = bench.shelf.codes(MODEL)
        (given,) = resources.given([prompt])
        drafter, rule = decoding_of(decoding, resources)
        fast = {**plain, "decoding": drafter, "rule": resources.rule(rule)}
        title = drafter.name if law == "exact" else f"{drafter.name}, {decoding}"
        yield from drawn_outputs(
            resources.pipeline, Wish(given, plain, fast, title, seed), bench.limits.seconds, "codes"
        )

    return draw

"""The image tab: a prompt, a grid of codes that fills twice, the two images, and whether they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mmspec.web.lanes import markup as painted
from mmspec.web.lanes import markup as told
from mmspec.web.lanes.image import ImageLane, ImageLaneRequest, image_lanes, layout, same_tokens
from mmspec.web.lanes.pixels import difference_view, enlarged
from mmspec.web.limits import LARGEST_SEED, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import (
    ALONE,
    QUIET,
    PageContext,
    cancels,
    checked_law,
    handler,
    lanes_view,
    law_switch,
    paced,
    prompt_row,
    record_view,
    run_row,
    seed_row,
    small_handler,
    status_line,
)

LEGEND = ("accepted", "corrected", "own", "drafted")
Layout = tuple[int, int, Callable[[int], tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class ImageView:
    """The right half of the tab."""

    headline: gr.HTML
    lanes: gr.HTML
    slider: gr.ImageSlider
    apart: gr.HTML
    table: gr.HTML
    record: gr.JSON

    @property
    def outputs(self) -> list[Any]:
        return [self.headline, self.lanes, self.slider, self.apart, self.table, self.record]


def picture_view(elem_id: str) -> ImageView:
    """Builds it."""
    return ImageView(
        headline=gr.HTML(container=False, elem_id=f"{elem_id}-headline"),
        lanes=lanes_view(f"{elem_id}-lanes"),
        slider=gr.ImageSlider(label="Plain (left) against accelerated (right)", show_label=False, interactive=False,
                              format="png", type="pil", elem_id=f"{elem_id}-slider", visible=False,
                              buttons=["fullscreen"]),
        apart=gr.HTML(container=False, elem_id=f"{elem_id}-difference"),
        table=gr.HTML(container=False, elem_id=f"{elem_id}-table"),
        record=record_view(elem_id),
    )  # fmt: skip


def image_outputs(pipe: Any, wish: ImageLaneRequest, seconds: float, unit: str) -> Iterator[tuple]:
    """Outputs of a tab, the status line first, as both pictures are drawn."""
    yield told.status("Warming up.", "running"), "", "", gr.update(value=None, visible=False), "", "", None
    shape = layout(pipe)
    for plain, fast in paced(image_lanes(pipe, wish, seconds)):
        yield _shown(plain, fast, wish, shape, unit)


def _shown(plain: ImageLane, fast: ImageLane, wish: ImageLaneRequest, shape: Layout, unit: str) -> tuple:
    rows, columns, place = shape
    done = fast.ended
    pair = [(lane, painted.grid(lane, rows, columns, place)) for lane in (plain, fast)]
    view = painted.lanes(pair, unit=unit, replay=done, legend=LEGEND)
    same = same_tokens(plain, fast)
    record = {
        "identical": same,
        "done": done,
        **{name: _figures(lane) for name, lane in (("plain", plain), ("fast", fast))},
    }
    if not done:
        lane = fast if fast.rounds else plain
        filled = sum(lane.stats.emitted) if lane.stats else 0
        line = told.status(f"{lane.title}: {filled} of {rows * columns} {unit}", "running", filled / (rows * columns))
        return line, gr.skip(), view, gr.skip(), gr.skip(), gr.skip(), record
    line = told.status(f"Done: seed {wish.seed}.", "done")
    table = told.table([told.figures(plain), told.figures(fast)], unit)
    if plain.picture is None or fast.picture is None:
        return line, "", view, gr.skip(), "", table, record
    both = (enlarged(plain.picture), enlarged(fast.picture))
    headline = told.headline(plain, fast, same, unit)
    return (line, headline, view, gr.update(value=both, visible=True), difference_view(plain.picture, fast.picture), table,
            record)  # fmt: skip


def _figures(lane: ImageLane) -> dict[str, Any]:
    found = told.figures(lane)
    return found if lane.head_calls is None else found | {"head_calls": lane.head_calls}


ID = "image"
MODEL = "t2i"
# in raster order, whose rounds fill what the grid shows
OFFERED = {"exact": ("scd", "sjd", "pac", "rows", "eagle"), "relaxed": ("lantern", "gsd", "cool")}
EXAMPLES = ("a large red star on a navy background", "a small cyan circle above a large orange square", "a yellow 7")


def image_tab(bench: PageContext) -> None:
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


def _handler(bench: PageContext) -> Any:
    @handler(rest=6)
    def draw(prompt, decoding, law, temperature, seed) -> Iterator[tuple]:
        from mmspec.evaluate.image.decodings import decoding_of

        law = checked_law(law)
        decoding = checked_choice("decoding", decoding, OFFERED[law])
        prompt = checked_text("prompt", prompt, bench.limits)
        plain = {"temperature": checked_number("temperature", temperature, 0, 2)}
        seed = checked_whole("seed", seed, 0, LARGEST_SEED)
        resources = bench.shelf.image_resources(MODEL)
        (given,) = resources.given([prompt])
        drafter, rule = decoding_of(decoding, resources)
        fast = {**plain, "decoding": drafter, "rule": resources.rule(rule)}
        title = drafter.name if law == "exact" else f"{drafter.name}, {decoding}"
        yield from image_outputs(
            resources.pipeline, ImageLaneRequest(given, plain, fast, title, seed), bench.limits.seconds, "codes"
        )

    return draw

"""The page: its tabs, its look, and the tab with the quality and speed of a run of `mmspec evaluate`."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from inspect import signature
from typing import Any

import gradio as gr

from mmspec.web.calls import HandlerInput
from mmspec.web.lanes import markup
from mmspec.web.runs import known_runs, plots, rows_of_run
from mmspec.web.tabs.controls import QUIET, UNCHECKED, PageContext, handler, small_handler, status_line
from mmspec.web.tabs.pictures import ContinuousTab, ImageTab
from mmspec.web.tabs.videos import VideoTab
from mmspec.web.tabs.vlm import VlmTab

PARETO_ID = "pareto"
NO_RUNS = "The server's folder has no runs yet: run `mmspec evaluate runs/zoo --count 16`, then update the list."


def pareto_tab(page: PageContext) -> None:
    names = known_runs(page.runs)
    gr.Markdown("Quality against speed of a run of `mmspec evaluate`, with the plots of `mmspec report`.")
    with gr.Row(equal_height=False, elem_classes="mm-seed"):
        name = gr.Dropdown(
            names,
            value=names[0] if names else None,
            label="Run",
            allow_custom_value=True,
            scale=3,
            elem_id=f"{PARETO_ID}-run-name",
        )
        show = gr.Button("Show", variant="primary", elem_id=f"{PARETO_ID}-run", scale=1, min_width=100)
        again = gr.Button("Update the list", scale=1, min_width=100)
    line = status_line(PARETO_ID)
    view = gr.HTML(
        "" if names else f'<p class="mm-note">{escape(NO_RUNS)}</p>', container=False, elem_id=f"{PARETO_ID}-plots"
    )
    again.click(small_handler(lambda: gr.update(choices=known_runs(page.runs))), outputs=name, **QUIET)
    show.click(
        _pareto_handler(page),
        name,
        [line, view],
        api_name="pareto",
        show_progress="hidden",
        concurrency_id="reading",
        concurrency_limit=1,
        **UNCHECKED,
    )


def _pareto_handler(page: PageContext) -> Any:
    @handler([""])
    def read(name) -> Iterator[tuple]:
        rows, notes = rows_of_run(page.runs, name, page.limits)
        cautions = "".join(f'<p class="mm-warning">{escape(note)}</p>' for note in notes)
        yield markup.status(f"{len(rows)} methods of {name}.", "done"), cautions + plots(rows)

    return read


TITLE = "mmspec: decoding with drafts beside plain decoding"
ABOUT = (
    "A cheap drafter proposes tokens, and the model verifies several of them in a single pass. Both lanes decode the same "
    "request, each **alone** on this machine, and the page then replays them beside each other at their measured speed. The "
    "models are the small ones that ship with mmspec and know only a procedural world: their figures hold for no other model."
)
TABS = {"Captions": VlmTab, "Images": ImageTab, "Continuous images": ContinuousTab, "Video": VideoTab}
FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "monospace"]


def build(page: PageContext) -> gr.Blocks:
    """Build the app without serving it. Models are loaded at the first request."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as app:
        gr.Markdown(f"# mmspec\n{ABOUT}")
        with gr.Tabs():
            for name, tab in TABS.items():
                with gr.Tab(name):
                    tab(page).build()
            with gr.Tab("Quality against speed"):
                pareto_tab(page)
    return app.queue(max_size=page.limits.waiting, default_concurrency_limit=1, api_open=False)


def handlers_of(app: gr.Blocks) -> dict[int, tuple[HandlerInput, ...]]:
    """Return the inputs of each handler of the page, by number. An event that only cancels has no handler."""
    return {number: _inputs(entry) for number, entry in app.fns.items() if entry.fn is not None}


def _inputs(entry: Any) -> tuple[HandlerInput, ...]:
    names = list(signature(entry.fn).parameters)
    return tuple(
        HandlerInput(name, isinstance(control, gr.Image))
        for name, control in zip(names, entry.inputs, strict=False)  # the function may take the event after its inputs
    )


def theme() -> gr.Theme:
    """Return the theme, with fonts of the visitor's own system, so that the page fetches nothing from elsewhere."""
    plain = {
        f"block_{part}_{field}{mode}": value
        for part in ("title", "label")
        for mode in ("", "_dark")
        for field, value in (("background_fill", "none"), ("text_color", "*body_text_color"))
    }
    backgrounds = {"background_fill_primary": "*neutral_50", "background_fill_secondary": "white"}
    # white text on buttons has a contrast of at least 4.5 to 1, pointed at or not
    buttons = {
        f"button_primary_background_fill{state}{mode}": hue
        for mode in ("", "_dark")
        for state, hue in (("", "*primary_600"), ("_hover", "*primary_700"))
    }
    buttons["checkbox_label_background_fill_selected"] = "*primary_600"
    return gr.themes.Soft(font=FONT, font_mono=MONO, primary_hue="blue", neutral_hue="slate").set(
        **plain, **buttons, **backgrounds
    )

"""The page: its tabs, its look, and what they share."""

from __future__ import annotations

from inspect import signature
from typing import Any

import gradio as gr

from mmspec.web.calls import Input
from mmspec.web.tabs.captions import captions_tab
from mmspec.web.tabs.codes import codes_tab
from mmspec.web.tabs.films import films_tab
from mmspec.web.tabs.shared import Bench
from mmspec.web.tabs.sweeps import sweeps_tab
from mmspec.web.tabs.vectors import vectors_tab

TITLE = "mmspec: drafted decoding beside plain decoding"
ABOUT = (
    "A cheap drafter proposes, the model verifies several values in one pass and keeps what its rule admits. Both lanes "
    "answer the same request, each **alone** on this machine, and are then played beside each other at true speed. The "
    "models are the small ones that ship with mmspec, trained on a procedural world: their figures stand for no other model."
)
TABS = {
    "Captions": captions_tab,
    "Images": codes_tab,
    "Continuous images": vectors_tab,
    "Video": films_tab,
    "Quality against speed": sweeps_tab,
}
FONT = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "monospace"]


def build(bench: Bench) -> gr.Blocks:
    """The app, not yet served. Nothing is loaded before someone asks for it."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as app:
        gr.Markdown(f"# mmspec\n{ABOUT}")
        with gr.Tabs():
            for name, tab in TABS.items():
                with gr.Tab(name):
                    tab(bench)
    return app.queue(max_size=bench.limits.waiting, default_concurrency_limit=1, api_open=False)


def handlers_of(app: gr.Blocks) -> dict[int, tuple[Input, ...]]:
    """The inputs of each handler of the page, by number. An event that only cancels another has no handler."""
    return {number: _inputs(entry) for number, entry in app.fns.items() if entry.fn is not None}


def _inputs(entry: Any) -> tuple[Input, ...]:
    names = list(signature(entry.fn).parameters)
    return tuple(
        Input(name, isinstance(control, gr.File))
        for name, control in zip(names, entry.inputs, strict=False)  # the function may take the event behind its inputs
    )


def theme() -> gr.Theme:
    """Fonts of the visitor's own system: nothing is fetched from elsewhere."""
    plain = {f"block_{part}_{what}{mode}": value for part in ("title", "label") for mode in ("", "_dark")
             for what, value in (("background_fill", "none"), ("text_color", "*body_text_color"))}  # fmt: skip
    page = {"background_fill_primary": "*neutral_50", "background_fill_secondary": "white"}
    # white text on buttons has at least 4.5 to 1, pointed at or not
    buttons = {f"button_primary_background_fill{state}{mode}": hue for mode in ("", "_dark")
               for state, hue in (("", "*primary_600"), ("_hover", "*primary_700"))}  # fmt: skip
    buttons["checkbox_label_background_fill_selected"] = "*primary_600"
    return gr.themes.Soft(font=FONT, font_mono=MONO, primary_hue="blue", neutral_hue="slate").set(
        **plain, **buttons, **page
    )

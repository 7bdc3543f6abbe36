"""The Pareto tab: quality against speed of a run that `mmspec evaluate` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import gradio as gr

from mmspec.web.paint import figures as told
from mmspec.web.paint.pareto import plots
from mmspec.web.runs.sweeps import known_runs, rows_of_run
from mmspec.web.tabs.shared import QUIET, UNCHECKED, Bench, handler, small_handler, status_line

ID = "pareto"
NONE = "No run lies in the server's folder yet: write one there with `mmspec evaluate runs/zoo --count 16`, then look again."


def sweeps_tab(bench: Bench) -> None:
    """Builds the tab."""
    names = known_runs(bench.runs)
    gr.Markdown("Quality against speed of a run of `mmspec evaluate`, as `mmspec report` draws it.")
    with gr.Row(equal_height=False, elem_classes="mm-seed"):
        name = gr.Dropdown(names, value=names[0] if names else None, label="Run", allow_custom_value=True, scale=3,
                           elem_id=f"{ID}-run-name")  # fmt: skip
        show = gr.Button("Show", variant="primary", elem_id=f"{ID}-run", scale=1, min_width=100)
        again = gr.Button("Look again", scale=1, min_width=100)
    line = status_line(ID)
    view = gr.HTML("" if names else f'<p class="mm-note">{escape(NONE)}</p>', container=False, elem_id=f"{ID}-plots")
    again.click(small_handler(lambda: gr.update(choices=known_runs(bench.runs))), outputs=name, **QUIET)
    show.click(_handler(bench), name, [line, view], api_name="pareto", show_progress="hidden", concurrency_id="reading",
               concurrency_limit=1, **UNCHECKED)  # fmt: skip


def _handler(bench: Bench) -> Any:
    @handler(rest=1)
    def read(name) -> Iterator[tuple]:
        rows, notes = rows_of_run(bench.runs, name, bench.limits)
        cautions = "".join(f'<p class="mm-warning">{escape(one)}</p>' for one in notes)
        yield told.status(f"{len(rows)} methods of {name}.", "done"), cautions + plots(rows)

    return read

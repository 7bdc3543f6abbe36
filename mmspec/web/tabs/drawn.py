"""What both tabs of pictures show: grids that fill, the two pictures, and whether they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from mmspec.web.paint import figures as told
from mmspec.web.paint import lanes as painted
from mmspec.web.paint.pixels import difference_view, enlarged
from mmspec.web.runs.pictures import Drawn, Wish, drawings, layout, same_tokens
from mmspec.web.tabs.shared import lanes_view, paced, record_view

LEGEND = ("accepted", "corrected", "own", "drafted")
Layout = tuple[int, int, Callable[[int], tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class View:
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


def picture_view(elem_id: str) -> View:
    """Builds it."""
    return View(
        headline=gr.HTML(container=False, elem_id=f"{elem_id}-headline"),
        lanes=lanes_view(f"{elem_id}-lanes"),
        slider=gr.ImageSlider(label="Plain (left) against accelerated (right)", show_label=False, interactive=False,
                              format="png", type="pil", elem_id=f"{elem_id}-slider", visible=False,
                              buttons=["fullscreen"]),
        apart=gr.HTML(container=False, elem_id=f"{elem_id}-difference"),
        table=gr.HTML(container=False, elem_id=f"{elem_id}-table"),
        record=record_view(elem_id),
    )  # fmt: skip


def drawn_outputs(pipe: Any, wish: Wish, seconds: float, unit: str) -> Iterator[tuple]:
    """Outputs of a tab, the status line first, as both pictures are drawn."""
    yield told.status("Warming up.", "running"), "", "", gr.update(value=None, visible=False), "", "", None
    shape = layout(pipe)
    for plain, fast in paced(drawings(pipe, wish, seconds)):
        yield _shown(plain, fast, wish, shape, unit)


def _shown(plain: Drawn, fast: Drawn, wish: Wish, shape: Layout, unit: str) -> tuple:
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


def _figures(lane: Drawn) -> dict[str, Any]:
    found = told.figures(lane)
    return found if lane.head_calls is None else found | {"head_calls": lane.head_calls}

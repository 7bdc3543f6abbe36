"""The base of the tabs that decode a request plainly and then with drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ClassVar

import gradio as gr

from mmspec.web.lanes import markup
from mmspec.web.lanes.lane import Lane
from mmspec.web.tabs.controls import (
    ALONE,
    PageContext,
    cancels,
    handler,
    lanes_view,
    paced,
    record_view,
    run_row,
    status_line,
)


class LaneReport(ABC):
    """Two lanes of one request as the outputs of a tab.

    Class attributes:
        unit: The values that a lane makes.
        legend: The marks that its view explains, see `markup.LEGEND`.
    """

    unit: ClassVar[str]
    legend: ClassVar[tuple[str, ...]] = ("accepted", "corrected", "own")

    @abstractmethod
    def lanes(self, seconds: float) -> Iterator[tuple[Lane, Lane]]:
        """The plain and the fast lane behind every round; each may decode for `seconds`."""

    @abstractmethod
    def view(self, lane: Lane) -> str:
        """A lane as HTML."""

    @abstractmethod
    def progress(self, lane: Lane) -> tuple[str, float]:
        """The values so far in words, and their share from 0 to 1."""

    @abstractmethod
    def same(self, plain: Lane, fast: Lane) -> bool:
        """Whether both lanes are finished and made the same."""

    @abstractmethod
    def summary(self) -> str:
        """The settings of the request that its outputs depend on."""

    def figures(self, lane: Lane) -> dict[str, Any]:
        """The figures of a lane for programs."""
        return markup.figures(lane)

    def media(self, plain: Lane, fast: Lane) -> tuple:
        """The outputs of the tab between the lanes and the table."""
        return ()

    def outputs(self, plain: Lane, fast: Lane, media: int) -> tuple:
        """The outputs of the tab: status, headline, lanes, `media` outputs of its own, table and record."""
        done, same = fast.ended, self.same(plain, fast)
        pair = [(lane, self.view(lane)) for lane in (plain, fast)]
        view = markup.lanes(pair, unit=self.unit, replay=done, legend=self.legend)
        record = {"identical": same, "done": done, "plain": self.figures(plain), "fast": self.figures(fast)}
        if not done:
            lane = fast if fast.rounds else plain
            text, share = self.progress(lane)
            line = markup.status(f"{lane.title}: {text}", "running", share)
            return line, gr.skip(), view, *[gr.skip()] * (media + 1), record
        line = markup.status(f"Done: {self.summary()}.", "done")
        table = markup.table([markup.figures(plain), markup.figures(fast)], self.unit)
        if plain.stopped is not None or fast.stopped is not None:
            return line, "", view, *[gr.skip()] * media, table, record
        return line, markup.headline(plain, fast, same, self.unit), view, *self.media(plain, fast), table, record


class LaneTab(ABC):
    """A tab with controls on its left and two lanes on its right.

    Class attributes:
        id: The first part of the ids of its elements.
        api: The name of its handler for programs.
        button: The text of the button that starts.
    """

    id: ClassVar[str]
    api: ClassVar[str]
    button: ClassVar[str] = "Draw"

    def __init__(self, page: PageContext):
        self.page = page

    @abstractmethod
    def request_controls(self) -> list[Any]:
        """Build the controls above the button; returns the inputs of the handler."""

    @abstractmethod
    def setting_controls(self) -> list[Any]:
        """Build the controls below the button; returns the further inputs of the handler."""

    @abstractmethod
    def connect(self, line: gr.HTML) -> None:
        """Tie controls to one another; `line` is the status line."""

    @abstractmethod
    def checked(self, *values: Any) -> Callable[[], LaneReport]:
        """Check the values of the inputs, whose names are those of the arguments.

        Returns:
            A function that loads the models.
        """

    def media_views(self) -> list[Any]:
        """Build the outputs between the lanes and the table."""
        return []

    def build(self) -> None:
        """Build the tab."""
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                inputs = self.request_controls()
                run, cancel = run_row(self.id, self.button)
                line = status_line(self.id)
                inputs += self.setting_controls()
            with gr.Column(scale=2, min_width=280):
                headline = gr.HTML(container=False, elem_id=f"{self.id}-headline")
                view, media = lanes_view(f"{self.id}-lanes"), self.media_views()
                table = gr.HTML(container=False, elem_id=f"{self.id}-table")
                record = record_view(self.id)
        self.connect(line)
        outputs = [line, headline, view, *media, table, record]
        event = run.click(self._handler(media), inputs, outputs, api_name=self.api, show_progress="hidden", **ALONE)
        cancels(cancel, event, line)

    def _handler(self, media: list[Any]) -> Callable[..., Iterator[tuple]]:
        # a picture is hidden until there is another; text is emptied
        cleared = ["" if isinstance(each, gr.HTML) else gr.update(value=None, visible=False) for each in media]

        @handler(rest=4 + len(media))
        @wraps(self.checked)
        def decode(*values: Any) -> Iterator[tuple]:
            load = self.checked(*values)
            yield markup.status("Loading the model and warming up.", "running"), "", "", *cleared, "", None
            report = load()
            for plain, fast in paced(report.lanes(self.page.limits.seconds)):
                yield report.outputs(plain, fast, len(media))

        return decode

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
    EMPTY,
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
    """Two lanes of a request as the outputs of a tab."""

    unit: ClassVar[str]  # the name of the values, such as "tokens"
    legend: ClassVar[tuple[str, ...]] = ("accepted", "corrected", "own")  # see `markup.LEGEND`

    @abstractmethod
    def lanes(self, seconds: float) -> Iterator[tuple[Lane, Lane]]:
        """Decode both lanes and yield them after every round; each may decode for `seconds`."""

    @abstractmethod
    def view(self, lane: Lane) -> str:
        """Return a lane as HTML."""

    @abstractmethod
    def progress(self, lane: Lane) -> tuple[str, float]:
        """Return the values so far in words, and their share from 0 to 1."""

    @abstractmethod
    def same(self, plain: Lane, fast: Lane) -> bool:
        """Return whether both lanes are finished and have the same output."""

    @abstractmethod
    def summary(self) -> str:
        """Return the settings of the request in words."""

    @abstractmethod
    def code(self) -> str:
        """Return a Python program of the request."""

    def warning(self) -> str:
        """Return a sentence on the request as amber HTML, "" for none."""
        return ""

    def head_calls(self, plain: Lane, fast: Lane) -> tuple[int, int] | None:
        """Return the calls of the diffusion head, None where drafts save passes."""
        return None

    @abstractmethod
    def captions(self, fast: Lane) -> tuple[str, str]:
        """Return a sentence below the plain lane and below the fast lane, which say where to look."""

    def figures(self, lane: Lane) -> dict[str, Any]:
        """Return the figures of a lane for programs."""
        return markup.figures(lane)

    def media(self, plain: Lane, fast: Lane) -> tuple:
        """Return the outputs of the tab between the lanes and the table."""
        return ()

    def outputs(self, plain: Lane, fast: Lane, media: int) -> tuple:
        """Return the outputs of the tab: status, headline, lanes, `media` outputs, table and record."""
        done, same = fast.ended, self.same(plain, fast)
        pair = [(lane, self.view(lane)) for lane in (plain, fast)]
        view = markup.lanes(
            pair, unit=self.unit, replay=done, legend=self.legend, captions=self.captions(fast), code=self.code()
        )
        record = {"identical": same, "done": done, "plain": self.figures(plain), "fast": self.figures(fast)}
        if not done:
            lane = fast if fast.rounds else plain
            text, share = self.progress(lane)
            line = markup.status(f"{lane.title}: {text}", "running", share)
            return line, gr.skip(), view, *[gr.skip()] * (media + 1), record
        line = markup.status(f"Done: {self.summary()}.", "done")
        table = markup.table([markup.figures(plain), markup.figures(fast)], self.unit)
        if plain.stopped is not None or fast.stopped is not None:
            return line, self.warning(), view, *[gr.skip()] * media, table, record
        headline = self.warning() + markup.headline(plain, fast, same, self.unit, self.head_calls(plain, fast))
        return line, headline, view, *self.media(plain, fast), table, record | {"python": self.code()}


class LaneTab(ABC):
    """A tab with a request, its result, and settings in a closed accordion. On a wide screen the result is on the right
    of the other two. On a phone the result is between them."""

    id: ClassVar[str]  # the first part of the ids of its elements
    api: ClassVar[str]  # the name of its handler for programs
    button: ClassVar[str] = "Draw"  # the text of the button that starts

    def __init__(self, page: PageContext):
        self.page = page

    @abstractmethod
    def request_controls(self) -> list[Any]:
        """Build the controls above the button and return them."""

    @abstractmethod
    def setting_controls(self) -> list[Any]:
        """Build the settings and return those that are inputs of the handler."""

    @abstractmethod
    def connect(self, outputs: list[Any], cleared: list[Any]) -> None:
        """Connect controls with each other and with the outputs of the tab, the status line first. The values `cleared`
        clear the outputs after it."""

    @abstractmethod
    def checked(self, *values: Any) -> Callable[[], LaneReport]:
        """Check the values of the inputs, which have the names of the arguments, and return a function that loads the
        models."""

    def media_views(self) -> list[Any]:
        """Build the outputs between the lanes and the table."""
        return []

    def build(self) -> None:
        with gr.Row(elem_classes="mm-page"):
            with gr.Column(elem_classes="mm-request", min_width=280):
                inputs = self.request_controls()
                run, cancel = run_row(self.id, self.button)
                line = status_line(self.id)
            with gr.Column(elem_classes="mm-result", min_width=280):
                headline = gr.HTML(container=False, elem_id=f"{self.id}-headline")
                view, media = lanes_view(f"{self.id}-lanes"), self.media_views()
                table = gr.HTML(container=False, elem_id=f"{self.id}-table")
                record = record_view(self.id)
            with gr.Column(elem_classes="mm-settings", min_width=280):
                with gr.Accordion("Settings", open=False, elem_id=f"{self.id}-settings"):
                    inputs += self.setting_controls()
        outputs = [line, headline, view, *media, table, record]
        # a picture is hidden until there is another; text is emptied
        empty = ["" if isinstance(each, gr.HTML) else gr.update(value=None, visible=False) for each in media]
        cleared = ["", EMPTY, *empty, "", None]
        self.connect(outputs, cleared)
        decode = self._handler(cleared)
        event = run.click(decode, inputs, outputs, api_name=self.api, show_progress="hidden", **ALONE)
        cancels(cancel, event, line)

    def _handler(self, cleared: list[Any]) -> Callable[..., Iterator[tuple]]:
        @handler(cleared)
        @wraps(self.checked)
        def decode(*values: Any) -> Iterator[tuple]:
            load = self.checked(*values)
            yield markup.status("Loading the model and warming up.", "running"), *cleared
            report = load()
            if report.warning():
                yield gr.skip(), report.warning(), *[gr.skip()] * (len(cleared) - 1)
            for plain, fast in paced(report.lanes(self.page.limits.seconds)):
                yield report.outputs(plain, fast, len(cleared) - 4)

        return decode

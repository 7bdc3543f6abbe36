"""What all tabs do alike: controls, handlers that end in one sentence, and the pace at which the page is told."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import gradio as gr

from mmspec.core.readers import read_text
from mmspec.web.limits import LARGEST_SEED, Limits
from mmspec.web.paint.figures import RELAXED, status
from mmspec.web.shelf import Shelf

T = TypeVar("T")
LAWS = ("exact", "relaxed")
ALONE = {"concurrency_id": "decoding", "concurrency_limit": 1}  # who decodes has the machine for himself
EVERY = 0.1  # seconds between two pictures of the page
READY = "Ready."
EMPTY = '<p class="mm-empty">Both lanes appear here, and are then played beside each other.</p>'
STATIC = Path(__file__).parents[1] / "static"


@dataclass(frozen=True, slots=True)
class Bench:
    """What a tab works with. runs: the folder whose runs of `mmspec evaluate` may be read.   uploads: the only folder whose
    pictures may be; examples lie there too.
    """

    shelf: Shelf
    limits: Limits
    runs: Path
    uploads: Path


def paced(items: Iterable[T], every: float = EVERY) -> Iterator[T]:
    """Of what comes quickly, one item at a time, and always the last."""
    last, item, told = -every, None, True
    for item in items:
        told = monotonic() - last >= every
        if told:
            last = monotonic()
            yield item
    if not told:
        yield item


def handler(rest: int) -> Callable[[Callable[..., Iterator[tuple]]], Callable[..., Iterator[tuple]]]:
    """For a generator of outputs whose first is the status line and which has `rest` others: an error becomes that line and
    the one sentence that the visitor's program gets; what is no ValueError is logged, and told without its text."""

    def decorate(work: Callable[..., Iterator[tuple]]) -> Callable[..., Iterator[tuple]]:
        @wraps(work)
        def run(*args: Any) -> Iterator[tuple]:
            try:
                yield from work(*args)
            except ValueError as error:
                why = " ".join(str(error).split())
            except Exception:  # whatever it is, it is nothing for a visitor to read
                logging.getLogger(__name__).exception("a request failed")
                why = (
                    "expected the request to run, got an error of the server, which has logged it; try another request"
                )
            else:
                return
            yield (status(why, "refused"), *[gr.skip()] * rest)
            raise gr.Error(why, print_exception=False)

        return run

    return decorate


def lanes_view(elem_id: str) -> gr.HTML:
    """Where lanes are drawn and played."""
    return gr.HTML(EMPTY, elem_id=elem_id, js_on_load=read_text(STATIC / "replay.js"), container=False)


def record_view(elem_id: str) -> gr.JSON:
    """What programs are told, folded away."""
    with gr.Accordion("Figures as JSON", open=False):
        return gr.JSON(show_label=False, elem_id=f"{elem_id}-record")


def lanes_column(elem_id: str) -> list[Any]:
    """What is told of two lanes: headline, lanes, table and record."""
    with gr.Column(scale=2, min_width=280):
        return [gr.HTML(container=False, elem_id=f"{elem_id}-headline"), lanes_view(f"{elem_id}-lanes"),
                gr.HTML(container=False, elem_id=f"{elem_id}-table"), record_view(elem_id)]  # fmt: skip


def prompt_row(
    elem_id: str, examples: Sequence[str], limits: Limits, label: str = "Prompt", lines: int = 2
) -> gr.Textbox:
    """A prompt, and examples of one."""
    prompt = gr.Textbox(
        examples[0], label=label, lines=lines, max_length=limits.characters, elem_id=f"{elem_id}-prompt"
    )
    gr.Examples([[one] for one in examples], [prompt], label="From the zoo's world", api_visibility="private")
    return prompt


def seed_row(value: int = 0) -> gr.Number:
    """A seed, and a button that draws another."""
    with gr.Row(equal_height=False, elem_classes="mm-seed"):
        seed = gr.Number(value, label="Seed", precision=0, minimum=0, maximum=LARGEST_SEED, scale=2, min_width=120)
        again = gr.Button("New seed", scale=1, min_width=100)
    again.click(lambda: secrets.randbelow(LARGEST_SEED), outputs=seed, api_visibility="private", queue=False)
    return seed


def law_switch(about: str) -> tuple[gr.Radio, gr.HTML]:
    """The switch, and the warning that stands below it while it is on relaxed. about: what is relaxed in this tab."""
    law = gr.Radio(list(LAWS), value="exact", label="Law of the fast lane")
    warning = gr.HTML(f'<p class="mm-warning" role="alert">{RELAXED} {about}</p>', visible=False, container=False)
    return law, warning


def run_row(elem_id: str, text: str) -> tuple[gr.Button, gr.Button]:
    """The buttons that start and cancel."""
    with gr.Row():
        run = gr.Button(text, variant="primary", elem_id=f"{elem_id}-run", min_width=140)
        cancel = gr.Button("Cancel", elem_id=f"{elem_id}-cancel", min_width=100)
    return run, cancel


def status_line(elem_id: str) -> gr.HTML:
    """What is going on."""
    return gr.HTML(status(READY), elem_id=f"{elem_id}-status", container=False)


def cancels(button: gr.Button, event: Any, line: gr.HTML) -> None:
    """Has a button end an event at its next round."""
    said = status("Cancelled: what was shown stands, nothing more is decoded.", "cancelled")
    button.click(lambda: said, outputs=line, cancels=[event], queue=False, api_visibility="private")

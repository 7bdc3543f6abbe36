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

from mmspec.io.readers import read_text
from mmspec.web.lanes.markup import RELAXED, status
from mmspec.web.limits import LARGEST_SEED, Limits, checked_choice, checked_whole
from mmspec.web.model_cache import ModelCache

T = TypeVar("T")
LAWS = ("exact", "relaxed")
# gradio checks no value: each handler does, with a sentence, and a fraction is not rounded before it is seen
UNCHECKED = {"preprocess": False}
ALONE = {"concurrency_id": "decoding", "concurrency_limit": 1, **UNCHECKED}  # decodes one request at a time
QUIET = {"api_visibility": "private", "queue": False, **UNCHECKED}  # a handler that only changes controls
EVERY = 0.1  # seconds between two pictures of the page
READY = "Ready."
EMPTY = '<p class="mm-empty">Both lanes appear here, and are then played beside each other.</p>'
STATIC = Path(__file__).parents[1] / "static"


@dataclass(frozen=True, slots=True)
class PageContext:
    """What a tab works with. runs: the folder whose runs of `mmspec evaluate` may be read.   uploads: the only folder whose
    pictures may be; examples lie there too.
    """

    model_cache: ModelCache
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
    """Decorate a generator of outputs so that an error ends in one sentence.

    Args:
        rest: The number of outputs behind the first, which is the status line.

    Returns:
        A decorator. The sentence becomes the status line, and the error that a visitor's program gets.
    """

    def decorate(work: Callable[..., Iterator[tuple]]) -> Callable[..., Iterator[tuple]]:
        @wraps(work)
        def run(*args: Any) -> Iterator[tuple]:
            try:
                yield from work(*args)
            except Exception as error:
                sentence = _sentence(error)
            else:
                return
            yield (status(sentence, "refused"), *[gr.skip()] * rest)
            raise gr.Error(sentence, print_exception=False)

        return run

    return decorate


def small_handler(work: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that only changes controls so that an error ends in one sentence."""

    @wraps(work)
    def run(*args: Any) -> Any:
        try:
            return work(*args)
        except Exception as error:
            sentence = _sentence(error)
        raise gr.Error(sentence, print_exception=False)

    return run


def _sentence(error: Exception) -> str:
    """The sentence for a visitor. An error that is no refusal is logged, and its text stays in the log."""
    if isinstance(error, ValueError):
        return " ".join(str(error).split())
    logging.getLogger(__name__).error("a request failed", exc_info=error)
    return "expected the request to run, got an error of the server, which has logged it; try another request"


def lanes_view(elem_id: str) -> gr.HTML:
    """Where lanes are drawn and played."""
    return gr.HTML(EMPTY, elem_id=elem_id, js_on_load=read_text(STATIC / "replay.js"), container=False)


def record_view(elem_id: str) -> gr.JSON:
    """What programs are told, folded away."""
    with gr.Accordion("Figures as JSON", open=False):
        return gr.JSON(show_label=False, elem_id=f"{elem_id}-record")


def prompt_row(
    elem_id: str, examples: Sequence[str], limits: Limits, label: str = "Prompt", lines: int = 2
) -> gr.Textbox:
    """A prompt, and examples of one."""
    prompt = gr.Textbox(
        examples[0], label=label, lines=lines, max_length=limits.characters, elem_id=f"{elem_id}-prompt"
    )
    known = tuple(examples)
    rows = gr.Dataset(components=[prompt], samples=[[text] for text in known], label="From the zoo's world")
    rows.click(small_handler(lambda number: known[checked_whole("example", number, 0, len(known) - 1)]), rows, prompt,
               **QUIET)  # fmt: skip
    return prompt


def seed_row(value: int = 0) -> gr.Number:
    """A seed, and a button that draws another."""
    with gr.Row(equal_height=False, elem_classes="mm-seed"):
        seed = gr.Number(value, label="Seed", precision=0, minimum=0, maximum=LARGEST_SEED, scale=2, min_width=120)
        again = gr.Button("New seed", scale=1, min_width=100)
    again.click(small_handler(lambda: secrets.randbelow(LARGEST_SEED)), outputs=seed, **QUIET)
    return seed


def law_switch(about: str) -> tuple[gr.Radio, gr.HTML]:
    """The switch, and the warning that stands below it while it is on relaxed. about: what is relaxed in this tab."""
    law = gr.Radio(list(LAWS), value="exact", label="Law of the fast lane")
    warning = gr.HTML(f'<p class="mm-warning" role="alert">{RELAXED} {about}</p>', visible=False, container=False)
    return law, warning


def checked_law(law: Any) -> str:
    """The law that the switch stands on."""
    return checked_choice("law", law, LAWS)


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
    cancelled = status("Cancelled: what was shown stands, nothing more is decoded.", "cancelled")
    button.click(small_handler(lambda: cancelled), outputs=line, cancels=[event], **QUIET)

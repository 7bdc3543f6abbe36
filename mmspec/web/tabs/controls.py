"""Shared parts of the tabs: controls, handlers whose errors are a sentence, and the rate of updates."""

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
# each handler checks its values itself, with a sentence; gradio would round fractions before that
UNCHECKED = {"preprocess": False}
ALONE = {"concurrency_id": "decoding", "concurrency_limit": 1, **UNCHECKED}  # decodes a single request at a time
QUIET = {"api_visibility": "private", "queue": False, **UNCHECKED}  # a handler that only changes controls
EVERY = 0.1  # seconds between two updates of the page
READY = "Ready."
EMPTY = '<p class="mm-empty">Both lanes appear here and are then replayed beside each other.</p>'
STATIC = Path(__file__).parents[1] / "static"


@dataclass(frozen=True, slots=True)
class PageContext:
    """The resources of the tabs."""

    model_cache: ModelCache
    limits: Limits
    runs: Path  # the only folder whose runs of `mmspec evaluate` are read
    uploads: Path  # the only folder whose pictures are read, the examples among them


def paced(items: Iterable[T], every: float = EVERY) -> Iterator[T]:
    """Yield at most an item every `every` seconds, and always the last item."""
    last, item, is_shown = -every, None, True
    for item in items:
        is_shown = monotonic() - last >= every
        if is_shown:
            last = monotonic()
            yield item
    if not is_shown:
        yield item


def handler(cleared: Sequence[Any]) -> Callable[[Callable[..., Iterator[tuple]]], Callable[..., Iterator[tuple]]]:
    """Return a decorator of a generator of outputs: the sentence of an error becomes the status line and the error for
    programs. The values `cleared`, of the outputs after the status line, remove an earlier result."""

    def decorate(work: Callable[..., Iterator[tuple]]) -> Callable[..., Iterator[tuple]]:
        @wraps(work)
        def run(*args: Any) -> Iterator[tuple]:
            try:
                yield from work(*args)
            except Exception as error:
                sentence = _sentence(error)
            else:
                return
            yield (status(sentence, "refused"), *cleared)
            raise gr.Error(sentence, print_exception=False)

        return run

    return decorate


def small_handler(work: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that only changes controls so that an error becomes a sentence."""

    @wraps(work)
    def run(*args: Any) -> Any:
        try:
            return work(*args)
        except Exception as error:
            sentence = _sentence(error)
        raise gr.Error(sentence, print_exception=False)

    return run


def _sentence(error: Exception) -> str:
    """Return the sentence for a visitor. The text of an unexpected error is only logged."""
    if isinstance(error, ValueError):
        return " ".join(str(error).split())
    logging.getLogger(__name__).error("a request failed", exc_info=error)
    return "expected the request to run, got an error of the server, which has logged it; try another request"


def lanes_view(elem_id: str) -> gr.HTML:
    return gr.HTML(EMPTY, elem_id=elem_id, js_on_load=read_text(STATIC / "replay.js"), container=False)


def record_view(elem_id: str) -> gr.JSON:
    """Build the figures for programs, folded away."""
    with gr.Accordion("Figures as JSON", open=False):
        return gr.JSON(show_label=False, elem_id=f"{elem_id}-record")


def prompt_row(
    elem_id: str, examples: Sequence[str], limits: Limits, label: str = "Prompt", lines: int = 2
) -> gr.Textbox:
    prompt = gr.Textbox(
        examples[0], label=label, lines=lines, max_length=limits.characters, elem_id=f"{elem_id}-prompt"
    )
    known = tuple(examples)
    rows = gr.Dataset(components=[prompt], samples=[[text] for text in known], label="Examples")
    rows.click(
        small_handler(lambda number: known[checked_whole("example", number, 0, len(known) - 1)]), rows, prompt, **QUIET
    )
    return prompt


def seed_row(value: int = 0) -> gr.Number:
    """Build a seed with a button that draws another."""
    with gr.Row(equal_height=False, elem_classes="mm-seed"):
        seed = gr.Number(value, label="Seed", precision=0, minimum=0, maximum=LARGEST_SEED, scale=2, min_width=120)
        again = gr.Button("New seed", scale=1, min_width=100)
    again.click(small_handler(lambda: secrets.randbelow(LARGEST_SEED)), outputs=seed, **QUIET)
    return seed


def law_switch(about: str) -> tuple[gr.Radio, gr.HTML]:
    """Build the switch between exact and relaxed, and the warning below it for relaxed; `about` is a sentence on the
    relaxed methods."""
    law = gr.Radio(
        list(LAWS), value="exact", label="Distribution of the fast lane: the model's own (exact), or relaxed"
    )
    warning = gr.HTML(f'<p class="mm-warning" role="alert">{RELAXED} {about}</p>', visible=False, container=False)
    return law, warning


def checked_law(law: Any) -> str:
    return checked_choice("law", law, LAWS)


def run_row(elem_id: str, text: str) -> tuple[gr.Button, gr.Button]:
    """Build the buttons that start and cancel."""
    with gr.Row():
        run = gr.Button(text, variant="primary", elem_id=f"{elem_id}-run", min_width=140)
        cancel = gr.Button("Cancel", elem_id=f"{elem_id}-cancel", min_width=100)
    return run, cancel


def status_line(elem_id: str) -> gr.HTML:
    return gr.HTML(status(READY), elem_id=f"{elem_id}-status", container=False)


def cancels(button: gr.Button, event: Any, line: gr.HTML) -> None:
    """Let a button end an event at its next round."""
    cancelled = status("Cancelled: the lanes stay as they are, and nothing more is decoded.", "cancelled")
    button.click(small_handler(lambda: cancelled), outputs=line, cancels=[event], **QUIET)

"""What benches ask a model: requests of one kind, how long the answers may get, and whether they may end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mmspec.evaluate.prompts import Prompt, albums, held_out, questions


@dataclass(frozen=True, slots=True)
class Task:
    """name: in tables.   make: requests from (count, seed).   new_tokens: the longest answer.

    natural: answers end where the model ends them; else the end-of-text token is suppressed.   pictures: per request.
    times: so many times the bench's number of prompts; short answers need more of them for a steady median.
    """

    name: str
    make: Callable[[int, int], Sequence[Prompt]]
    new_tokens: int
    natural: bool = True
    pictures: int = 1
    times: int = 1


CAPTIONS = Task("captions", held_out, 128)
QUESTIONS = Task("questions", questions, 48, times=3)
ONE_WORD = Task("one word", questions, 3, times=3)  # "It is red": hardly a draft fits in
ENDLESS = Task("endless captions", held_out, 128, natural=False)
ALBUMS = tuple(
    Task(f"{count} picture{'s' * (count > 1)}", partial(albums, pictures=count), 128, pictures=count)
    for count in (1, 4, 8, 16)
)

"""What a long command says of its progress, on a terminal and in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from mmspec.cli.console import progress, screen

if TYPE_CHECKING:
    from rich.console import Console

_ALIVE = 60.0  # seconds after which a log has another line


@contextmanager
def steps(title: str, requests: int, parts: int) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Two callables for work in parts that are made of requests, each told what has just been done.

    On a terminal they move a bar; elsewhere a line on stderr tells of the beginning, of every part, and in long parts now
    and then of a request, so that a log shows it is alive.
    """
    console = screen(stderr=True)
    if console.is_terminal:
        with progress() as bar:
            task = bar.add_task("warming up", total=requests)
            yield (lambda text: bar.update(task, advance=1, description=text)), lambda text: None
        return
    lines = _Lines(console, requests, parts)
    lines.say(f"{title}: {requests:,} requests in {parts:,} parts")
    yield lines.request, lines.part


class _Lines:
    """Lines on what has been done."""

    def __init__(self, console: Console, requests: int, parts: int):
        self.console, self.requests, self.parts = console, requests, parts
        self.done = self.finished = 0

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)
        self.last = monotonic()

    def request(self, text: str) -> None:
        self.done += 1
        if monotonic() - self.last >= _ALIVE:
            self.say(f"  {self.done:,} of {self.requests:,} requests: {text}")

    def part(self, text: str) -> None:
        self.finished += 1
        self.say(f"{self.finished} of {self.parts}: {text}")

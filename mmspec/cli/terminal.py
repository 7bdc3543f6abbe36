"""Output for people at a terminal, which scripts do not get: next steps, colours and a countdown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmspec.cli.console import progress, say, screen


def is_for_people() -> bool:
    """Return whether stdout is a terminal, and not a file or a pipe that a script reads."""
    return screen().is_terminal


def has_colour() -> bool:
    out = screen()
    return out.is_terminal and out.color_system is not None and not out.no_color


def say_next(command: str) -> None:
    """Print the command line that a person may want to run next; scripts do not get it."""
    if is_for_people():
        say(f"Next: {command}", "dim")


@contextmanager
def countdown(text: str, seconds: float) -> Iterator[None]:
    """Show a bar that fills in the expected seconds of the work; nothing unless stderr is a terminal."""
    from threading import Event, Thread

    with progress() as bar:
        if bar.disable:
            yield
            return
        task, ended = bar.add_task(f"{text}, seconds", total=round(seconds)), Event()

        def tick() -> None:
            while not ended.wait(1.0):
                bar.advance(task)

        ticking = Thread(target=tick, daemon=True)
        ticking.start()
        try:
            yield
        finally:
            ended.set()
            ticking.join()

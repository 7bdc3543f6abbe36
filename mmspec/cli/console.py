"""What all commands share: two consoles, tables, one-sentence errors, progress, and JSON files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

import typer

from mmspec.io.interrupts import Stopped, restore_interrupts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


_WIDE = 200  # where nobody looks at a terminal, tables are not squeezed
_ESTIMATE_PERIOD = 600.0  # seconds of past steps from which the remaining time is estimated
_RESTART_OPTIONS = ("--no-resume", "--fresh")  # what makes a run start over


class BadOption(ValueError):
    """An option or argument was refused, or what it names: a usage error."""


@contextmanager
def refusing() -> Iterator[None]:
    """Around what is made of options and arguments before a command's work begins: what is raised there refuses them."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadOption(str(error)) from error


def screen(stderr: bool = False) -> Console:
    """A console on the present stdout or stderr; colours only on a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=_NamedStream(stream), width=None if stream.isatty() else _WIDE, highlight=False)


class _NamedStream:
    """A stream whose failed writes say which one it is."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._named():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._named():
            self._stream.flush()

    def _named(self) -> AbstractContextManager[None]:
        from mmspec.io.files import writing

        return writing(str(getattr(self._stream, "name", "the screen")))


def reports_errors(command: Callable) -> Callable:
    """Ends a command that raises ValueError or OSError with the error's one sentence, in red on stderr.

    Exit code 2 for a refused option or argument, 1 for a run that failed. One that is interrupted ends with
    a sentence on what is kept and 128 + the signal: 130 for Ctrl-C, 143 for SIGTERM.
    """

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            restore_interrupts()
            return command(*args, **kwargs)
        except (ValueError, OSError) as error:
            say_error(" ".join(str(error).split()))
            raise typer.Exit(2 if isinstance(error, BadOption) else 1) from error
        except KeyboardInterrupt as stop:
            raise typer.Exit(_say_stopped(stop)) from stop

    return run


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Prints a text as it is, without markup and without wrapping."""
    from rich.text import Text

    screen(stderr).print(Text(text, style=style), soft_wrap=True)


def say_error(sentence: str) -> None:
    """One red sentence on stderr."""
    say(f"Error: {sentence}", "red", stderr=True)


def print_table(title: str, heads: Collection[str], rows: Iterable[Iterable[Any]], right: Collection[str] = ()) -> None:
    """Prints a table.

    Args:
        title: The line above it.
        heads: The heads of its columns.
        rows: The values of each line, in the order of the heads.
        right: The heads of the columns that are aligned on their right.
    """
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(escape(head), justify="right" if head in right else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row))
    screen().print(table)


def _say_stopped(stop: KeyboardInterrupt) -> int:
    """Says what an interrupted command has kept; returns its exit code."""
    kept, code = "files already written are whole, nothing else is kept", 130
    if isinstance(stop, Stopped):
        kept, code = f"{stop}; go on with: {_command()}" if stop.resumes else str(stop), 128 + stop.signal
    say(f"Stopped: {kept}", "yellow", stderr=True)
    return code


def _command() -> str:
    """The command line that goes on where this one stopped."""
    import os
    import shlex

    words = [word for word in sys.argv[1:] if word not in _RESTART_OPTIONS]
    launched = "accelerate launch ... " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    return f"{launched}{shlex.join(['mmspec', *words])}"


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display on stderr that disappears when done; silent unless stderr is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = screen(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # the estimate of the remaining time needs two steps within the period, and a step may take minutes
    settings = {"console": console, "transient": True, "speed_estimate_period": _ESTIMATE_PERIOD}
    bar = Progress(*columns, disable=not console.is_terminal, **settings)
    if not console.is_terminal:  # a display that is disabled still ends with an empty line in rich before 14
        yield bar
        return
    with bar:
        yield bar


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """A spinner on stderr while something of unknown length runs; silent unless stderr is a terminal."""
    console = screen(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def quiet_transformers() -> None:
    """Keeps transformers' own bars and hints off the screen; what it raises still arrives."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def check_writable(*paths: Path | None) -> None:
    """Refuses, before any work is done, files that could not be written at the end, and one that is named twice."""
    from mmspec.io.files import destination

    named: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        try:
            final = destination(path)
        except ValueError as error:
            raise BadOption(str(error)) from error
        if final in named:
            raise BadOption(f"expected a file of its own for every output, got {str(path)!r} twice, rename one")
        named.add(final)
        _probe(path, final)


def _probe(path: Path, final: Path) -> None:
    """Makes and removes a file beside `final`, with a name as long as that of the one it will be written through."""
    from tempfile import NamedTemporaryFile

    try:
        with NamedTemporaryFile(prefix=f".{final.stem}.", suffix=final.suffix, dir=final.parent):
            pass
    except OSError as error:
        raise BadOption(
            f"expected a file that can be written, got {str(path)!r} ({error.strerror}), name one elsewhere"
        ) from error


def save_json(path: Path | None, value: Any) -> None:
    """Writes what the screen shows, whole or not at all; nothing without a path."""
    if path is not None:
        from mmspec.io.files import write_json_atomic

        write_json_atomic(path, value)


_ALIVE = 60.0  # seconds after which a log has another line
_STORED = 1e-3  # seconds up to which a request was read from a log, which tells nothing about the others


@contextmanager
def step_progress(
    title: str, requests: int, parts: int
) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Two callables for work in parts that are made of requests, each called with the work just done.

    On a terminal they move a bar; elsewhere a line on stderr tells of the beginning, of every part, and in long parts now
    and then of a request, so that a log shows it is alive.
    """
    console = screen(stderr=True)
    if console.is_terminal:
        with progress() as bar:
            task = bar.add_task("warming up", total=requests)
            yield (lambda text: bar.update(task, advance=1, description=text)), lambda text: None
        return
    lines = _ProgressLines(console, requests, parts)
    lines.say(f"{title}: {requests:,} requests in {parts:,} parts")
    yield lines.request, lines.part


class _ProgressLines:
    """Lines on what has been done."""

    def __init__(self, console: Console, requests: int, parts: int):
        self.console, self.requests, self.parts = console, requests, parts
        self.done = self.finished = self.measured = 0
        self.seconds, self.previous = 0.0, monotonic()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)
        self.last = monotonic()

    def request(self, text: str) -> None:
        self.done += 1
        seconds, self.previous = monotonic() - self.previous, monotonic()
        if seconds > _STORED:
            self.measured, self.seconds = self.measured + 1, self.seconds + seconds
        if monotonic() - self.last >= _ALIVE:
            self.say(f"  {self.done:,} of {self.requests:,} requests: {text}{self.estimate()}")

    def part(self, text: str) -> None:
        self.finished += 1
        self.say(f"{self.finished} of {self.parts}: {text}{self.estimate()}")

    def estimate(self) -> str:
        return time_left(self.requests - self.done, self.seconds / max(self.measured, 1))


def time_left(requests: int, seconds: float) -> str:
    """Return an estimate of the remaining time as the end of a line; "" for less than a minute.

    Args:
        requests: The remaining requests.
        seconds: The mean time of a request.
    """
    left = requests * seconds
    if left < 60:
        return ""
    return f"; about {left / 60:.0f} min left" if left < 5400 else f"; about {left / 3600:.1f} h left"

"""The parts that all commands share: two consoles, one-sentence errors, progress, and JSON files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
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


PIPE_WIDTH = 100  # columns where stdout is no terminal and COLUMNS is not set
_ESTIMATE_PERIOD = 600.0  # seconds of past steps from which the remaining time is estimated
_RESTART_OPTIONS = ("--no-resume", "--fresh")  # options that make a run start over


class BadOption(ValueError):
    """A usage error: an option or argument was refused, or the file or model that it names."""


@contextmanager
def refusing() -> Iterator[None]:
    """Turn the errors of checks that run before a command's work begins into usage errors."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadOption(str(error)) from error


def screen(stderr: bool = False) -> Console:
    """Return a console on the present stdout or stderr, with colours only on a terminal. Without a terminal its width
    is COLUMNS where that is set, else `PIPE_WIDTH`."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPE_WIDTH
    return Console(file=_NamedStream(stream), width=width, highlight=False)


class _NamedStream:
    """A stream whose write errors name it."""

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
    """Decorate a command: ValueError, OSError and a full device memory end it with one red sentence on stderr. The exit
    code is 2 for a refused option or argument and 1 for a run that failed. An interrupted command ends with a sentence
    that names the files that remain, and with 128 + the signal: 130 for Ctrl-C, 143 for SIGTERM."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            restore_interrupts()
            return command(*args, **kwargs)
        except (ValueError, OSError) as error:
            say_error(" ".join(str(error).split()))
            raise typer.Exit(2 if isinstance(error, BadOption) else 1) from error
        except RuntimeError as error:
            if type(error).__name__ != "OutOfMemoryError":  # torch's, named so that torch need not be imported
                raise
            reason = str(error).partition(". ")[0]
            say_error(
                f"--device: expected enough memory, got {reason!r}; use --device cpu, a lower --dtype or less input"
            )
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            raise typer.Exit(_say_stopped(stop)) from stop

    return run


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Print a text as it is, without markup and without wrapping."""
    from rich.text import Text

    screen(stderr).print(Text(text, style=style), soft_wrap=True)


def say_error(sentence: str) -> None:
    say(f"Error: {sentence}", "red", stderr=True)


def _say_stopped(stop: KeyboardInterrupt) -> int:
    """Print the sentence of an interrupted command; return its exit code."""
    sentence, code = "files already written are whole, nothing else is kept", 130
    if isinstance(stop, Stopped):
        sentence, code = f"{stop}; go on with: {_command()}" if stop.resumes else str(stop), 128 + stop.signal
    say(f"Stopped: {sentence}", "yellow", stderr=True)
    return code


def _command() -> str:
    """Return the command line that continues this command."""
    import shlex

    words = [word for word in sys.argv[1:] if word not in _RESTART_OPTIONS]
    launched = "accelerate launch ... " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    return f"{launched}{shlex.join(['mmspec', *words])}"


@contextmanager
def progress() -> Iterator[Progress]:
    """Show bars with the time left on stderr until the block ends; nothing unless stderr is a terminal."""
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
    """Show a spinner on stderr while work of unknown length runs; nothing unless stderr is a terminal."""
    console = screen(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def quiet_transformers() -> None:
    """Turn off the bars and hints of transformers, and the retries of the hub; their errors still arrive."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    hub.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def check_writable(*paths: Path | None) -> None:
    """Refuse, before any work is done, output files that cannot be written, and two outputs of the same name."""
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
    """Create and remove a temporary file beside `final`, with a name as long as that of the later write."""
    from tempfile import NamedTemporaryFile

    try:
        with NamedTemporaryFile(prefix=f".{final.stem}.", suffix=final.suffix, dir=final.parent):
            pass
    except OSError as error:
        raise BadOption(
            f"expected a file that can be written, got {str(path)!r} ({error.strerror}), name one elsewhere"
        ) from error


def save_json(path: Path | None, value: Any) -> None:
    """Write the figures of the screen to a file, whole or not at all; do nothing without a path."""
    if path is not None:
        from mmspec.io.files import write_json_atomic

        write_json_atomic(path, value)


_ALIVE = 60.0  # seconds after which a log has another line
_STORED = 1e-3  # seconds up to which a request was read from a log, which tells nothing about the others


@contextmanager
def step_progress(
    title: str, requests: int, parts: int
) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Yield two callables for work in parts of several requests: call them after a request, and after a part. On a
    terminal they move a bar. Elsewhere stderr gets a line at the beginning, after every part, and about once a minute
    inside long parts, so that a log shows progress."""
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
    """The lines of a log: finished parts, and requests of long parts."""

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
    """Return the remaining time as the end of a line, from the mean `seconds` of a request; "" for less than a minute."""
    left = requests * seconds
    if left < 60:
        return ""
    return f"; about {left / 60:.0f} min left" if left < 5400 else f"; about {left / 3600:.1f} h left"

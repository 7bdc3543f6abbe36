"""Interrupts: a long run finishes its step on Ctrl-C, saves its state and reports it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run that a signal ended after its state was saved. The message `kept` is the saved state and its place, in
    words. A command ends with status 128 + `number`, the signal. If it `resumes`, the same call continues."""

    def __init__(self, kept: str, number: int = signal.SIGINT, resumes: bool = True):
        super().__init__(kept)
        self.signal, self.resumes = number, resumes


def end_before_work(number: int, frame: object) -> None:
    """Handle a signal before a command has started its work: print a sentence and exit."""
    os.write(2, b"Stopped: no work had begun\n")
    os._exit(128 + number)


def restore_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again where `end_before_work` handled it."""
    if signal.getsignal(signal.SIGINT) is end_before_work:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class StopRequest:
    """A request to stop a run; `signal` is the signal that arrived, 0 for none."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = 0


@contextmanager
def stop_requests(loud: bool = True) -> Iterator[StopRequest]:
    """Record the first SIGINT or SIGTERM inside the block; a second signal has its usual effect. The run checks the
    request where it can stop; `loud` logs that it will. Ignored signals stay ignored. Outside the main thread, which
    alone receives signals, nothing changes."""
    import logging  # late, since the command line imports this file before it handles signals

    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handlers = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}

    def give_back() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        request.signal = number
        give_back()
        if loud:
            logging.getLogger(__name__).warning("Stopping after this step; a second signal stops at once.")

    for number in handlers:
        signal.signal(number, note)
    try:
        yield request
    finally:
        give_back()

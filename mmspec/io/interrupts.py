"""Interrupts: how a long run takes Ctrl-C, ends its step, keeps what it has, and says so."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run that a signal ended after what it had was on the disk; the message says what, and where it lies.

    signal: its number; a command ends with the status 128 + signal.   resumes: the same call goes on from there.
    """

    def __init__(self, kept: str, number: int = signal.SIGINT, resumes: bool = True):
        super().__init__(kept)
        self.signal, self.resumes = number, resumes


def end_before_work(number: int, frame: object) -> None:
    """Handles a signal to a command that has not begun to work: a sentence, and no more of this process."""
    os.write(2, b"Stopped: nothing was begun\n")
    os._exit(128 + number)


def restore_interrupts() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt where it was handled by `end_before_work`."""
    if signal.getsignal(signal.SIGINT) is end_before_work:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class StopRequest:
    """signal: the one that asked the run to stop, 0 while none has."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = 0


@contextmanager
def stop_requests(loud: bool = True) -> Iterator[StopRequest]:
    """Inside the block the first SIGINT or SIGTERM is only noted; a second one does what it would have done before.

    The run looks at the request where it can stop. loud: a warning says that it will. Signals that were ignored stay so;
    outside the main thread, which alone is told of signals, nothing changes.
    """
    import logging  # late, as the command line imports this file before it can be interrupted with grace

    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread():
        taken = {}

    def give_back() -> None:
        for number, handler in taken.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        request.signal = number
        give_back()
        if loud:
            logging.getLogger(__name__).warning("Stopping behind this step; a second signal stops at once.")

    for number in taken:
        signal.signal(number, note)
    try:
        yield request
    finally:
        give_back()

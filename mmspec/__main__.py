"""The `mmspec` command. Ctrl-C ends it with a sentence even while it still imports its own code."""

from __future__ import annotations

import signal

from mmspec.io.interrupts import end_before_work


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # an ignored signal stays ignored
        signal.signal(signal.SIGINT, end_before_work)
    from mmspec.cli import app

    app()


if __name__ == "__main__":
    main()

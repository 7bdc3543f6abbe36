"""The `mmspec` command from its first moment on: Ctrl-C ends it with a sentence while it still reads its own code, too."""

from __future__ import annotations

import signal

from mmspec.io.interrupts import end_before_work


def main() -> None:
    """Runs the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, and stays so
        signal.signal(signal.SIGINT, end_before_work)
    from mmspec.cli import app

    app()


if __name__ == "__main__":
    main()

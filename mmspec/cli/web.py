"""`mmspec web`: drafted decoding beside plain decoding, in a browser."""

from __future__ import annotations

from pathlib import Path

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, quiet_transformers, refusing, say
from mmspec.cli.options import check_range


@command()
def web(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    runs: Path = Path("runs"),
    seconds: float = 120.0,
    waiting: int = 16,
) -> None:
    """Serve a page that shows drafted decoding beside plain decoding (needs mmspec\\[web]).

    Args:
        host (NAME): Address to serve on; with 0.0.0.0 other machines reach the page.
        port (N): Port; the first free port from 7860 on when left out.
        runs (DIR): Folder of the runs of `mmspec evaluate` that the page shows.
        seconds (S): Longest time of a decoding in seconds.
        waiting (N): Number of requests that may wait.

    Examples:
        mmspec web
        mmspec web --port 8000 --runs runs
    """
    check_range(1, waiting=waiting)
    if not 0 < seconds < float("inf"):
        raise BadOption(f"--seconds: expected a number above 0, got {seconds}, change it")
    if port is not None and not 0 < port < 65536:
        raise BadOption(f"--port: expected 1 to 65535, got {port}, change it")
    with refusing():
        from mmspec.web.server import need_packages

        need_packages()
    from mmspec.web.limits import Limits
    from mmspec.web.model_cache import ModelCache
    from mmspec.web.server import is_loopback, serving

    quiet_transformers()
    limits = Limits(seconds=seconds, waiting=waiting)
    with serving(ModelCache(), limits, runs=runs, host=host, port=port) as address:
        say(f"Serving on {address}; Ctrl-C ends it.")
        if not is_loopback(host):
            say("Anyone who reaches this machine can use it: there is no password.", "yellow")
        _until_interrupted()


def _until_interrupted() -> None:
    from time import sleep

    from mmspec.io.interrupts import stop_requests

    with stop_requests(loud=False) as request:
        while not request.signal:
            sleep(0.1)
    say("Stopped.")

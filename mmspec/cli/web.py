"""`mmspec web`: drafted decoding beside plain decoding, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.console import BadOption, refusing, reports_errors, screen
from mmspec.cli.options import check_at_least


@reports_errors
def web(
    host: Annotated[str, typer.Option(help="Address to serve on; other machines reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(metavar="N", help="A free one from 7860 on when left out.")] = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder whose runs of `mmspec evaluate` are shown.")] = Path(
        "runs"
    ),
    seconds: Annotated[float, typer.Option(metavar="S", help="Longest time that one lane may decode.")] = 120.0,
    waiting: Annotated[int, typer.Option(metavar="N", help="Requests that may wait.")] = 16,
) -> None:
    """Serve a page that shows drafted decoding beside plain decoding (needs mmspec\\[web])."""
    check_at_least("--waiting", waiting, 1)
    if not 0 < seconds < float("inf"):
        raise BadOption(f"--seconds: expected a number above 0, got {seconds}, change it")
    if port is not None and not 0 < port < 65536:
        raise BadOption(f"--port: expected 1 to 65535, got {port}, change it")
    with refusing():
        from mmspec.web.server import need_gradio

        need_gradio()
    from mmspec.cli.console import quiet_transformers
    from mmspec.web.limits import Limits
    from mmspec.web.model_cache import ModelCache
    from mmspec.web.server import is_loopback, serving

    quiet_transformers()
    limits = Limits(seconds=seconds, waiting=waiting)
    with serving(ModelCache(), limits, runs=runs, host=host, port=port) as address:
        screen().print(f"Serving on {address}; Ctrl-C ends it.", markup=False, soft_wrap=True)
        if not is_loopback(host):
            screen().print("Anyone who reaches this machine can use it: there is no password.", style="yellow")
        _until_interrupted()


def _until_interrupted() -> None:
    from time import sleep

    from mmspec.io.interrupts import stop_requests

    with stop_requests(loud=False) as request:
        while not request.signal:
            sleep(0.1)
    screen().print("Stopped.")

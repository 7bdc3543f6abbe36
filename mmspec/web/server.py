"""Serves the app: on the loopback interface, with no telemetry, no sharing, and limits on everything."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.web.gate import RequestGate
from mmspec.web.limits import Limits

if TYPE_CHECKING:
    from mmspec.web.model_cache import ModelCache

LOOPBACK = "127.0.0.1"
OWN = (LOOPBACK, "localhost", "[::1]")  # names of this machine for itself
PACKAGES = ("gradio", "matplotlib")  # what the extra `web` brings
# gradio reads them when it is imported, and libraries below it when they are used
QUIET = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_RUN_HISTORY": "False",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
SECONDS_TO_END = 20.0  # for the round that is being decoded and for uploads that are on their way


def need_packages() -> None:
    """Raises ValueError where a package of the extra `web` is not installed."""
    from importlib.util import find_spec

    for name in PACKAGES:
        if find_spec(name) is None:
            raise ValueError(f'web: expected {name}, got none, pip install "mmspec[web]"')


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what is served there."""
    return host in OWN or host == "::1"


@contextmanager
def serving(
    model_cache: ModelCache,
    limits: Limits | None = None,
    *,
    runs: Path = Path("runs"),
    host: str = LOOPBACK,
    port: int | None = None,
) -> Iterator[str]:
    """The app's address, served for as long as the block runs.

    runs: the folder whose runs of `mmspec evaluate` may be read.   port: None for a free one from 7860 on.
    Uploads lie in a folder of their own, which goes with the server.
    Raises ValueError without the extra `web`, and for a port that is taken.
    """
    need_packages()
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="mmspec-web-") as folder:
        with _environment({**QUIET, "GRADIO_TEMP_DIR": folder}):
            from mmspec.web.app import build, handlers_of
            from mmspec.web.tabs.controls import PageContext

            app = build(PageContext(model_cache, limits, runs, Path(folder)))
            gate = RequestGate(_not_served, limits, Path(folder), handlers_of(app), OWN if is_loopback(host) else None)
            try:
                yield _launch(app, gate, limits, host, port)
            finally:
                gate.close()
                app.close(verbose=False)
                _wait_for_end(getattr(app, "server", None))  # the server tidies the folder as it ends


def _launch(app: Any, gate: RequestGate, limits: Limits, host: str, port: int | None) -> str:
    from mmspec.web.app import theme
    from mmspec.web.tabs.controls import STATIC

    @asynccontextmanager
    async def behind_the_gate(served: Any) -> AsyncIterator[None]:
        # around gradio's own middleware, which answers other pages' requests and adds headers that invite them
        gate.app, served.middleware_stack = served.middleware_stack, gate
        try:
            yield
        finally:
            served.middleware_stack = gate.app

    try:
        _, address, _ = app.launch(
            server_name=host, server_port=port, prevent_thread_lock=True, share=False, quiet=True, show_error=False,
            inbrowser=False, max_file_size=limits.file_bytes, max_threads=8, allowed_paths=[], strict_cors=True,
            enable_monitoring=False, mcp_server=False, ssr_mode=False, pwa=False, footer_links=[],
            app_kwargs={"lifespan": behind_the_gate, "docs_url": None, "redoc_url": None, "openapi_url": None},
            theme=theme(), css_paths=[STATIC / "style.css"],
            _frontend=False,  # else gradio asks itself for the page, and gives up where that takes more than three seconds
        )  # fmt: skip
    except OSError as error:
        taken = "7860 to 7959, all taken" if port is None else f"{port}, which is taken"
        raise ValueError(f"--port: expected a port of {host} that is free, got {taken}, name another") from error
    return address


async def _not_served(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("server: expected the app to have started, got a request before it, start the server first")


def _wait_for_end(server: Any) -> None:
    """Wait until the server's thread has ended, and drop the connections that keep it from ending."""
    thread = getattr(server, "thread", None)
    if thread is not None:
        thread.join(SECONDS_TO_END)
        server.force_exit = thread.is_alive()
        thread.join(SECONDS_TO_END)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables for the block alone."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

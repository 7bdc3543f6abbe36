"""Serve the app on the loopback interface, without telemetry and sharing, and with limits on all requests."""

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
OWN = (LOOPBACK, "localhost", "[::1]")  # names of this machine
PACKAGES = ("gradio", "matplotlib")  # of the extra `web`
# gradio reads these at import, its libraries when they are used
QUIET = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_RUN_HISTORY": "False",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
SECONDS_TO_END = 20.0  # for the current round and for uploads in progress


def need_packages() -> None:
    """Check that the packages of the extra `web` are installed."""
    from importlib.util import find_spec

    for name in PACKAGES:
        if find_spec(name) is None:
            raise ValueError(f'web: expected {name}, got none, pip install "mmspec[web]"')


def is_loopback(host: str) -> bool:
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
    """Serve the app while the block runs, and return its address. The folder of uploads is deleted at the end. `runs`
    is the only folder whose runs of `mmspec evaluate` are read. A port of None is a free port from 7860 on."""
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
                _wait_for_end(getattr(app, "server", None))  # the server deletes files of the folder at its end


def _launch(app: Any, gate: RequestGate, limits: Limits, host: str, port: int | None) -> str:
    from mmspec.web.app import theme
    from mmspec.web.tabs.controls import STATIC

    @asynccontextmanager
    async def behind_the_gate(served: Any) -> AsyncIterator[None]:
        # around gradio's own middleware, which answers requests of other pages and adds headers that allow them
        gate.app, served.middleware_stack = served.middleware_stack, gate
        try:
            yield
        finally:
            served.middleware_stack = gate.app

    try:
        _, address, _ = app.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            share=False,
            quiet=True,
            show_error=False,
            inbrowser=False,
            max_file_size=limits.file_bytes,
            max_threads=8,
            allowed_paths=[],
            strict_cors=True,
            enable_monitoring=False,
            mcp_server=False,
            ssr_mode=False,
            pwa=False,
            footer_links=[],
            app_kwargs={"lifespan": behind_the_gate, "docs_url": None, "redoc_url": None, "openapi_url": None},
            theme=theme(),
            css_paths=[STATIC / "style.css"],
            _frontend=False,  # else gradio requests the page itself, and fails after three seconds
        )
    except OSError as error:
        used = "7860 to 7959, all in use" if port is None else f"{port}, which is in use"
        raise ValueError(f"--port: expected a port of {host} that is free, got {used}, name another") from error
    return address


async def _not_served(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("server: expected the app to have started, got a request before it, start the server first")


def _wait_for_end(server: Any) -> None:
    """Wait for the end of the server's thread, and drop the connections that delay it."""
    thread = getattr(server, "thread", None)
    if thread is not None:
        thread.join(SECONDS_TO_END)
        server.force_exit = thread.is_alive()
        thread.join(SECONDS_TO_END)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables during the block."""
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

"""The gate in front of the app: it opens the addresses of the page to its own origin, and checks each body.

The gate rewrites every upload and every call, so that the app behind it sees only checked values.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from mmspec.web.asgi import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    TrackedSend,
    read_body,
    refuse,
    replayed,
    reworded,
    with_headers,
)
from mmspec.web.calls import Handlers, RefusedValue, checked_body, checked_call, checked_cancel, checked_reset
from mmspec.web.limits import Limits, RefusedRequest
from mmspec.web.uploads import file_of_form, form_of_file, is_uploaded, stored_bytes

API = "/gradio_api"
FILE, UPLOAD, PREDICT = f"{API}/file=", f"{API}/upload", f"{API}/run/predict"
INFO, INFO_QUERIES = f"{API}/info", (b"", b"serialize=False")  # gradio_client reads the public handlers here
CALLS = {
    f"{API}/queue/join": checked_call,
    PREDICT: checked_call,
    f"{API}/cancel": checked_cancel,
    f"{API}/reset": checked_reset,
}
STREAMS = (f"{API}/queue/data", f"{API}/upload_progress")
# read by the page, gradio_client and the start of the server; every other address of gradio is closed
PAGES = ("/", "/config", "/theme.css", "/favicon.ico", f"{API}/app_id", f"{API}/startup-events", INFO, *STREAMS)
FOLDERS = ("/assets/", "/static/")

FORM_BYTES = 10_000  # bytes that a form adds to a file
CLOSED = "page: expected one of the app's own, got another, start at its address"
FIELDS = "request: expected the fields that the page sends, got others, use the page or gradio_client"
FAILED = "request: expected it to run, got an error of the server, which has logged it, try another"
ENDING = "server: expected one that goes on, got one that ends, start it again"
NO_SESSION = b'"session_not_found":true'


class RequestGate:
    """ASGI middleware around the whole app, its own middleware included. `uploads` is the only folder whose files a
    request may name. `names` are those of this machine that a request may address; None for any. A page elsewhere with
    a rebound DNS name has another name."""

    def __init__(
        self, app: App, limits: Limits, uploads: Path, handlers: Handlers, names: tuple[str, ...] | None = None
    ):
        self.app, self.limits, self.uploads, self.names = app, limits, uploads.resolve(), names
        self.handlers = handlers
        self._incoming = 0  # bytes of the uploads that are on their way
        self._is_closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """End the streams, from any thread. The server can end only when they have."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_closing.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":  # the page opens no socket
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            self._loop = asyncio.get_running_loop()
            answer = TrackedSend(send)
            try:
                await self._answer(scope, receive, answer)
            except Exception:  # nothing of it is for a visitor to read
                logging.getLogger(__name__).exception("a request failed")
                await answer.end(500, FAILED)

    async def _answer(self, scope: Scope, receive: Receive, send: TrackedSend) -> None:
        path, headers = scope["path"], dict(scope.get("headers", ()))
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if self.names is not None and _without_port(host) not in self.names:
            await refuse(send, 421, f"address: expected one of {', '.join(self.names)}, got another, use one of these")
        elif origin and origin not in (f"http://{host}", f"https://{host}"):
            await refuse(send, 403, "origin: expected the page's own, got another, open the page at its address")
        elif not self._is_open(scope["method"], path, scope.get("query_string", b"")):
            await refuse(send, 404, CLOSED)
        else:
            # without an origin the app does not invite other pages
            await self._pass(with_headers(scope, {b"origin": None}), receive, send, headers)

    def _is_open(self, method: str, path: str, query: bytes) -> bool:
        if method == "POST":
            return path in CALLS or path == UPLOAD
        if method not in ("GET", "HEAD") or "\0" in path or (path == INFO and query not in INFO_QUERIES):
            return False
        if path.startswith(FILE):
            return is_uploaded(path.removeprefix(FILE), self.uploads)
        return path in PAGES or path.startswith(FOLDERS)

    async def _pass(self, scope: Scope, receive: Receive, send: TrackedSend, headers: dict[bytes, bytes]) -> None:
        path = scope["path"]
        full = f"queue: expected at most {self.limits.waiting} requests to wait, got one more, try again in a minute"
        sentences = {422: FIELDS, 500: FAILED, 503: full}
        if path == PREDICT:  # a handler's own sentence comes with this status
            del sentences[500]
        if path == UPLOAD:
            await self._upload(scope, receive, reworded(send, sentences), headers)
        elif path in CALLS:
            await self._call(scope, receive, send, sentences)
        elif path in STREAMS:
            await self._stream(scope, receive, send, sentences)
        else:
            await self.app(scope, receive, reworded(send, sentences))

    async def _call(self, scope: Scope, receive: Receive, send: Send, sentences: dict[int, str]) -> None:
        most = self.limits.body_bytes
        body = await read_body(receive, most)
        if body is None:
            await refuse(send, 413, f"request: expected at most {most:,} bytes, got more, shorten the text")
            return
        try:
            body = checked_body(CALLS[scope["path"]], body, self.handlers, self.uploads)
        except RefusedValue as error:
            detail = {"__type__": "validate", "is_valid": False, "parameter_name": error.name, "message": error.reason}
            await refuse(send, 422, [detail])
            return
        except RefusedRequest as error:
            await refuse(send, 400, str(error))
            return
        changes = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
        await self.app(with_headers(scope, changes), replayed([body], receive), reworded(send, sentences))

    async def _upload(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or int(length) > self.limits.file_bytes + FORM_BYTES:
            await refuse(send, 413, f"picture: expected at most {self.limits.file_bytes:,} bytes, got more, shrink it")
            return
        most, size = self.limits.folder_bytes, int(length)
        self._incoming += size
        try:
            if self._incoming + await asyncio.to_thread(stored_bytes, self.uploads) > most:
                await refuse(
                    send, 507, f"uploads: expected at most {most:,} bytes in all, got more, try again in an hour"
                )
                return
            body = await read_body(receive, size) or b""
            content_type, parts = form_of_file(*file_of_form(headers.get(b"content-type", b"").decode("latin-1"), body))
            del body
            changes = {
                b"content-type": content_type.encode(),
                b"content-length": str(sum(map(len, parts))).encode(),
            }
            await self.app(with_headers(scope, changes), replayed(parts, receive), send)
        except RefusedRequest as error:
            await refuse(send, 400, str(error))
        finally:
            self._incoming -= size

    async def _stream(self, scope: Scope, receive: Receive, send: TrackedSend, sentences: dict[int, str]) -> None:
        """Pass an answer on until it or the server ends."""
        is_lost = False

        async def watching(message: Message) -> None:
            nonlocal is_lost
            is_lost = is_lost or NO_SESSION in message.get("body", b"")
            await send(message)

        answer = asyncio.ensure_future(self.app(scope, receive, reworded(watching, sentences)))
        closing = asyncio.ensure_future(self._is_closing.wait())
        try:
            await asyncio.wait({answer, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            is_cut = not answer.done()
            answer.cancel()
            (error,) = await asyncio.gather(answer, return_exceptions=True)
        # gradio raises after an answer that the session is unknown
        if isinstance(error, Exception) and not (is_lost or is_cut):
            raise error
        await send.end(503, ENDING)


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host

"""What is refused before the app sees it: large bodies, files that nobody uploaded, and what the queue has no room for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from mmspec.web.limits import Limits

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_FORM = 10_000  # bytes that a form adds to a file
UPLOAD, JOIN = "/upload", "/queue/join"
API = "/gradio_api"
CLOSED = (
    "/proxy=",
    "/component_server",
    "/monitoring",
    "/process_recording",
    "/stream/",
    "/runs",
    "/deep_link",
    "/vibe",
)
POLICY = {
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
}


class Gate:
    """ASGI middleware.   uploads: the only folder whose files a request may name.   names: of this machine that a request may
    address; None for any. A page elsewhere whose name is made to lead here (DNS rebinding) has another.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        limits: Limits,
        uploads: Path,
        names: tuple[str, ...] | None = None,
    ):
        self.app, self.limits, self.uploads, self.names = app, limits, uploads.resolve(), names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, send = scope["path"], _with_policy(send)
        if self.names is not None and _addressed(scope) not in self.names:
            await _refuse(send, 421, f"address: expected one of {', '.join(self.names)}, got another, use one of these")
        elif path.removeprefix(API).startswith(CLOSED):
            await _refuse(send, 404, "page: expected one of the app's own, got another, start at its address")
        elif scope["method"] != "POST":
            await self.app(scope, receive, send)
        elif path == API + UPLOAD:
            await self._upload(scope, receive, send)
        else:
            await self._post(scope, receive, send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self.limits.file_bytes + _FORM
        length = dict(scope.get("headers", ())).get(b"content-length", b"")
        if length.isdigit() and int(length) <= most:
            await self.app(scope, receive, send)
        else:
            await _refuse(send, 413, f"picture: expected at most {self.limits.file_bytes:,} bytes, got more, shrink it")

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        most = self.limits.body_bytes
        body = await _body(receive, most)
        if body is None:
            await _refuse(send, 413, f"request: expected at most {most:,} bytes, got more, shorten the text")
            return
        if why := self._stray(body):
            await _refuse(send, 400, why)
            return

        told = False

        async def once() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, once, _worded(send, self.limits.waiting) if scope["path"].endswith(JOIN) else send)

    def _stray(self, body: bytes) -> str | None:
        """Why a request's files are refused; None where they were all uploaded."""
        try:
            asked = json.loads(body) if body else None
        except (ValueError, RecursionError):
            return "request: expected JSON, got something else, use the page or gradio_client"
        for path in _paths(asked):
            if not isinstance(path, str) or "://" in path or not self._uploaded(path):
                return "picture: expected an uploaded file, got a path or an address, upload the picture"
        return None

    def _uploaded(self, path: str) -> bool:
        try:
            return Path(path).resolve().is_relative_to(self.uploads)
        except (OSError, ValueError):
            return False


def _addressed(scope: Scope) -> str:
    """The name that a request gives the server, without its port."""
    host = dict(scope.get("headers", ())).get(b"host", b"").decode("latin-1").lower()
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host


def _paths(value: Any) -> Iterator[Any]:
    """What JSON names as a file's path, however deep."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            if one.get("path") is not None:
                yield one["path"]
            stack += one.values()
        elif isinstance(one, list):
            stack += one


async def _body(receive: Receive, most: int) -> bytes | None:
    """A request's body; None for one of more than `most` bytes, the rest of which is not read."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        more = message.get("more_body", False)
    return b"".join(parts)


def _with_policy(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *POLICY.items()]}
        await send(message)

    return sending


def _worded(send: Send, waiting: int) -> Send:
    """Puts our sentence in the place of the queue's own where it is full."""
    full: list[bool] = []

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 503:
            full.append(True)
            return
        if not full:
            await send(message)
        elif not message.get("more_body", False):
            why = f"queue: expected at most {waiting} requests to wait, got one more, try again in a minute"
            await _refuse(send, 503, why)

    return sending


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})

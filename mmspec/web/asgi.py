"""Messages of ASGI: read the body of a request, refuse a request, and replace the text of an error by a sentence."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = {
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"SAMEORIGIN",
}


class TrackedSend:
    """A `send` that adds the headers of the policy and tracks the state of the answer."""

    __slots__ = ("is_ended", "is_started", "send")

    def __init__(self, send: Send):
        self.send, self.is_started, self.is_ended = send, False, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            message = {**message, "headers": [*message.get("headers", ()), *POLICY.items()]}
        elif message["type"] == "http.response.body":
            self.is_ended = not message.get("more_body", False)
        await self.send(message)

    async def end(self, status: int, sentence: str) -> None:
        """Finish the answer, also if the app has sent a part of it; the status and the reason count if none has been
        sent."""
        if not self.is_started:
            await refuse(self, status, sentence)
        elif not self.is_ended:
            await self({"type": "http.response.body", "body": b""})


async def refuse(send: Send, status: int, detail: str | list[dict[str, Any]]) -> None:
    """Answer with a status and JSON whose field `detail` is a sentence, or a list in the form that gradio_client reads."""
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive, most: int) -> bytes | None:
    """Read the body of a request; None if it has more than `most` bytes, whose rest is not read."""
    parts, size, has_more = [], 0, True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        has_more = message.get("more_body", False)
    return b"".join(parts)


def replayed(parts: Sequence[bytes], receive: Receive) -> Receive:
    """Return a channel that gives a body in parts, and then the messages of `receive`."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    messages.reverse()

    async def replaying() -> Message:
        return messages.pop() if messages else await receive()

    return replaying


def with_headers(scope: Scope, changes: Mapping[bytes, bytes | None]) -> Scope:
    """Return the scope of a request with other headers; None removes a header."""
    headers = [(name, value) for name, value in scope.get("headers", ()) if name not in changes]
    headers += [(name, value) for name, value in changes.items() if value is not None]
    return {**scope, "headers": headers}


def reworded(send: Send, sentences: Mapping[int, str]) -> Send:
    """Return a `send` that replaces the app's answer by our sentence if its status is in the list."""
    replaced: int | None = None  # the status whose body is left out

    async def sending(message: Message) -> None:
        nonlocal replaced
        if message["type"] == "http.response.start" and message["status"] in sentences:
            replaced = message["status"]
        elif replaced is None:
            await send(message)
        elif not message.get("more_body", False):  # the end of the body
            await refuse(send, replaced, sentences[replaced])

    return sending

"""A gate around an app that notes its bodies, and requests to it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from mmspec.web.calls import HandlerInput
from mmspec.web.gate import RequestGate
from mmspec.web.limits import Limits
from mmspec.web.uploads import form_of_file

LIMITS = Limits(body_bytes=1000, file_bytes=100_000, folder_bytes=150_000, waiting=3)
HANDLERS = {0: (HandlerInput("file", is_file=True),), 1: (HandlerInput("law"), HandlerInput("seed")), 2: ()}
JOIN, UPLOAD = "/gradio_api/queue/join", "/gradio_api/upload"


class App:
    """An ASGI app that notes what it is sent and answers with `status`."""

    def __init__(self, status: int = 200, body: bytes = b'{"event_id": "e"}'):
        self.status, self.body, self.bodies = status, body, []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        whole = b""
        while True:
            message = await receive()
            whole += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(whole)
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.body[:3], "more_body": True})
        await send({"type": "http.response.body", "body": self.body[3:]})


def asked(
    app: App,
    folder: Path,
    path: str,
    body: bytes = b"",
    method: str = "POST",
    parts: int = 1,
    declared: bool = True,
    host: str = "127.0.0.1:7860",
    names: tuple[str, ...] | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    query: bytes = b"",
) -> tuple[int, Any]:
    """The status and the body's JSON of a request that arrives in parts."""
    step = max(1, -(-len(body) // parts))
    pieces = [body[i : i + step] for i in range(0, len(body), step)] or [b""]
    inbox = [{"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]} for piece in pieces]
    sent: list[dict] = []

    async def receive() -> dict:
        return inbox.pop(0) if inbox else {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    gate = RequestGate(app, LIMITS, folder, HANDLERS, names)
    length = [(b"content-length", str(len(body)).encode())] if declared else []
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "query_string": query,
        "headers": [(b"host", host.encode()), *length, *headers],
    }
    asyncio.run(gate(scope, receive, send))
    head, *rest = sent
    assert {name for name, _ in head["headers"]} >= {b"x-content-type-options", b"referrer-policy", b"x-frame-options"}
    return head["status"], json.loads(b"".join(one["body"] for one in rest))


def sentence(status: int, answer: Any, expected: int) -> None:
    assert status == expected
    assert answer["detail"].count("expected") == 1 and answer["detail"].count("got") == 1


def wrong_value(status: int, answer: Any, name: str) -> str:
    """The sentence about one input, in the form that gradio_client reads."""
    (found,) = answer["detail"]
    assert status == 422 and found["parameter_name"] == name and found["is_valid"] is False
    assert found["message"].count("expected") == 1 and found["message"].count(", got ") == 1
    return found["message"]


def call(number: Any, *data: Any, **fields: Any) -> bytes:
    return json.dumps({"data": data, "fn_index": number, "session_hash": "s", **fields}).encode()


def named(path: Any) -> bytes:
    return call(0, {"path": path, "meta": {"_type": "gradio.FileData"}})


def form(content: bytes = b"x", name: str = "a.png") -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    content_type, parts = form_of_file(name, content)
    return b"".join(parts), ((b"content-type", content_type.encode()),)

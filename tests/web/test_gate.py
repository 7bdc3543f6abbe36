"""Requests that are refused before the app sees them, each with one sentence."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mmspec.web.gate import Gate
from mmspec.web.limits import Limits
from mmspec.web.server import OWN

LIMITS = Limits(body_bytes=1000, file_bytes=100_000, waiting=3)


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

    gate = Gate(app, LIMITS, folder, names)
    heads = [(b"host", host.encode()), *([(b"content-length", str(len(body)).encode())] if declared else [])]
    asyncio.run(gate({"type": "http", "path": path, "method": method, "headers": heads}, receive, send))
    head, *rest = sent
    assert {name for name, _ in head["headers"]} >= {b"x-content-type-options", b"referrer-policy", b"x-frame-options"}
    return head["status"], json.loads(b"".join(one["body"] for one in rest))


def sentence(status: int, answer: Any, expected: int) -> None:
    assert status == expected
    assert answer["detail"].count("expected") == 1 and answer["detail"].count("got") == 1


def named(path: Any) -> bytes:
    return json.dumps({"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}], "fn_index": 0}).encode()


@pytest.mark.parametrize("parts", [1, 7])
def test_an_ordinary_request_arrives_whole(tmp_path: Path, parts: int) -> None:
    (tmp_path / "a.png").touch()
    app, body = App(), named(str(tmp_path / "a.png"))
    assert asked(app, tmp_path, "/gradio_api/queue/join", body, parts=parts) == (200, {"event_id": "e"})
    assert app.bodies == [body]


@pytest.mark.parametrize("parts", [1, 50])
def test_a_large_body_is_refused_and_not_read_to_its_end(tmp_path: Path, parts: int) -> None:
    app = App()
    sentence(*asked(app, tmp_path, "/gradio_api/queue/join", b"x" * 10_000_000, parts=parts), 413)
    assert app.bodies == []


def test_an_upload_may_be_larger_since_it_has_its_own_limit(tmp_path: Path) -> None:
    app = App()
    asked(app, tmp_path, "/gradio_api/upload", b"x" * 5000)
    assert len(app.bodies[0]) == 5000


@pytest.mark.parametrize(("size", "declared"), [(200_000, True), (10, False)])
def test_an_upload_that_is_too_large_or_does_not_say_how_large_it_is_is_refused(
    tmp_path, size: int, declared: bool
) -> None:
    app = App()
    sentence(*asked(app, tmp_path, "/gradio_api/upload", b"x" * size, declared=declared), 413)
    assert app.bodies == []


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../../../etc/passwd", "https://example.com/a.png", "file:///etc/passwd", "data:image/png;base64,AA",
     7, ["/etc/passwd"], "a\0b", "UPLOADS/../../etc/passwd", "UPLOADS/link"],
)  # fmt: skip
def test_a_file_that_nobody_uploaded_is_refused_and_not_repeated(tmp_path: Path, path: Any) -> None:
    folder = tmp_path / "uploads"
    folder.mkdir()
    (tmp_path / "elsewhere.png").touch()
    (folder / "link").symlink_to(tmp_path / "elsewhere.png")
    path = path.replace("UPLOADS", str(folder)) if isinstance(path, str) else path
    app = App()
    status, answer = asked(app, folder, "/gradio_api/queue/join", named(path))
    sentence(status, answer, 400)
    assert app.bodies == [] and "passwd" not in answer["detail"] and "/" not in answer["detail"]


def test_a_file_is_found_however_deep_it_is_named(tmp_path: Path) -> None:
    body = json.dumps({"data": [[{"a": [{"b": {"path": "/etc/passwd"}}]}]]}).encode()
    sentence(*asked(App(), tmp_path, "/gradio_api/queue/join", body), 400)


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 900])
def test_what_is_no_json_is_refused(tmp_path: Path, body: bytes) -> None:
    sentence(*asked(App(), tmp_path, "/gradio_api/queue/join", body), 400)


def test_a_full_queue_says_so_in_our_words(tmp_path: Path) -> None:
    app = App(503, b'{"detail": "Queue is full. Max size is 3 and size is 3."}')
    status, answer = asked(app, tmp_path, "/gradio_api/queue/join", b"{}")
    sentence(status, answer, 503)
    assert "at most 3 requests to wait" in answer["detail"]


@pytest.mark.parametrize(
    "path", ["/gradio_api/proxy=http://example.com", "/gradio_api/component_server", "/monitoring/x"]
)
def test_routes_that_the_page_does_not_use_are_closed(tmp_path: Path, path: str) -> None:
    app = App()
    sentence(*asked(app, tmp_path, path, method="GET"), 404)
    assert app.bodies == []


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:7860", 200), ("localhost:7860", 200), ("LOCALHOST", 200), ("[::1]:7860", 200), ("[::1]", 200),
     ("evil.example:7860", 421), ("127.0.0.1.evil.example", 421), ("localhost:7860.evil.example", 421), ("", 421)],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_was_made_to_lead_here_is_refused(tmp_path: Path, host: str, status: int, method: str) -> None:
    app = App()
    found, answer = asked(app, tmp_path, "/config", b"{}", method, host=host, names=OWN)
    assert found == status and (status == 421) == (app.bodies == [])
    if status == 421:
        sentence(found, answer, 421)
        assert "evil" not in answer["detail"]
    assert asked(App(), tmp_path, "/config", b"{}", method, host=host)[0] == 200  # served to others on purpose

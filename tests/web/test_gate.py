"""The gate opens the addresses that the page needs, to the page's own origin."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mmspec.web.gate import RequestGate
from mmspec.web.server import OWN
from tests.web.gated import HANDLERS, JOIN, LIMITS, App, asked, call, sentence


@pytest.mark.parametrize(
    "path", ["/gradio_api/proxy=http://example.com", "/gradio_api/component_server", "/monitoring/x",
             "/gradio_api/dev/reload", "/gradio_api/heartbeat/s", "/gradio_api/openapi.json", "/gradio_api/info/",
             "/gradio_api/a_route_of_tomorrow", "/openapi.json", "/docs", "/gradio_api/call/caption", "//config",
             "/gradio_api/file=/etc/passwd", "/gradio_api/file=UPLOADS/a\0b", "/gradio_api/file=UPLOADS/../x"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "OPTIONS"])
def test_addresses_that_the_page_does_not_use_are_closed(tmp_path: Path, path: str, method: str) -> None:
    app = App()
    sentence(*asked(app, tmp_path, path.replace("UPLOADS", str(tmp_path)), b"{}", method=method), 404)
    assert app.bodies == []


def test_addresses_that_the_page_uses_are_open(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    for path in (
        "/",
        "/config",
        "/theme.css",
        "/assets/a.js",
        "/gradio_api/queue/data",
        f"/gradio_api/file={tmp_path}/a.png",
    ):
        assert asked(App(), tmp_path, path, method="GET")[0] == 200, path
        assert asked(App(), tmp_path, path, method="POST")[0] == 404, path


@pytest.mark.parametrize(("query", "status"), [(b"", 200), (b"serialize=False", 200), (b"all_endpoints=true", 404)])
def test_only_the_public_handlers_are_listed(tmp_path: Path, query: bytes, status: int) -> None:
    assert asked(App(), tmp_path, "/gradio_api/info", method="GET", query=query)[0] == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7860", 200),
        ("HTTP://127.0.0.1:7860", 200),
        ("http://localhost:7860", 403),
        ("http://127.0.0.1:9999", 403),
        ("http://localhost:9999", 403),
        ("http://127.0.0.1", 403),
        ("null", 403),
        ("http://evil.example", 403),
        ("http://127.0.0.1:7860.evil.example", 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_page_of_another_origin_is_refused(tmp_path: Path, origin: str, status: int, method: str) -> None:
    app = App()
    path = JOIN if method != "GET" else "/config"
    found, answer = asked(app, tmp_path, path, call(2), method, headers=((b"origin", origin.encode()),))
    if method == "OPTIONS" and status == 200:
        status = 404  # the own page asks for nothing in advance
    assert found == status and (status == 200) == (app.bodies != [])
    if status == 403:
        sentence(found, answer, 403)
        assert "evil" not in answer["detail"]


@pytest.mark.parametrize("status", [422, 500, 503])
def test_an_error_of_the_app_is_answered_with_a_sentence(tmp_path: Path, status: int) -> None:
    sentence(*asked(App(status, b"Internal Server Error"), tmp_path, JOIN, call(2)), status)


def test_an_app_that_raises_is_logged_and_answered_with_a_sentence(tmp_path: Path, caplog) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret")

    status, answer = asked(broken, tmp_path, JOIN, call(2))
    sentence(status, answer, 500)
    assert "secret" in caplog.text and "secret" not in answer["detail"]


def test_a_stream_ends_when_the_gate_is_closed(tmp_path: Path) -> None:
    sent: list[dict] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data", "more_body": True})
        await asyncio.sleep(1000)

    async def visit() -> None:
        gate = RequestGate(endless, LIMITS, tmp_path, HANDLERS)

        async def receive() -> dict:
            return {"type": "http.request"}

        async def send(message: dict) -> None:
            sent.append(message)
            gate.close()

        scope = {"type": "http", "path": "/gradio_api/queue/data", "method": "GET", "headers": []}
        await asyncio.wait_for(gate(scope, receive, send), 5)

    asyncio.run(visit())
    assert [one.get("body") for one in sent] == [None, b"data", b""] and not sent[-1].get("more_body")


def test_a_websocket_is_closed(tmp_path: Path) -> None:
    app, sent = App(), []

    async def receive() -> dict:
        return {"type": "websocket.connect"}

    async def send(message: dict) -> None:
        sent.append(message["type"])

    asyncio.run(
        RequestGate(app, LIMITS, tmp_path, HANDLERS)({"type": "websocket", "path": "/", "headers": []}, receive, send)
    )
    assert sent == ["websocket.close"] and app.bodies == []


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:7860", 200), ("localhost:7860", 200), ("LOCALHOST", 200), ("[::1]:7860", 200), ("[::1]", 200),
     ("evil.example:7860", 421), ("127.0.0.1.evil.example", 421), ("localhost:7860.evil.example", 421), ("", 421)],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_name_that_was_made_to_lead_here_is_refused(tmp_path: Path, host: str, status: int, method: str) -> None:
    app = App()
    path = "/config" if method == "GET" else JOIN
    found, answer = asked(app, tmp_path, path, call(2), method, host=host, names=OWN)
    assert found == status and (status == 421) == (app.bodies == [])
    if status == 421:
        sentence(found, answer, 421)
        assert "evil" not in answer["detail"]
    assert asked(App(), tmp_path, path, call(2), method, host=host)[0] == 200  # served to others on purpose

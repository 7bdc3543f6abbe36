"""Calls and uploads pass the gate checked and written anew, or are refused with one sentence before the app sees them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mmspec.web.gate import RequestGate
from mmspec.web.uploads import BLOCK, stored_bytes
from tests.web.gated import HANDLERS, JOIN, LIMITS, UPLOAD, App, asked, call, form, named, sentence, wrong_value


@pytest.mark.parametrize("parts", [1, 7])
def test_an_ordinary_request_arrives_whole(tmp_path: Path, parts: int) -> None:
    (tmp_path / "a.png").touch()
    app, body = App(), named(str(tmp_path / "a.png"))
    assert asked(app, tmp_path, JOIN, body, parts=parts) == (200, {"event_id": "e"})
    (passed,) = map(json.loads, app.bodies)
    assert passed["data"] == json.loads(body)["data"] and (passed["fn_index"], passed["session_hash"]) == (0, "s")


@pytest.mark.parametrize("parts", [1, 50])
def test_a_large_body_is_refused_and_not_read_to_its_end(tmp_path: Path, parts: int) -> None:
    app = App()
    sentence(*asked(app, tmp_path, JOIN, b"x" * 10_000_000, parts=parts), 413)
    assert app.bodies == []


def test_an_upload_may_be_larger_since_it_has_its_own_limit(tmp_path: Path) -> None:
    app = App()
    body, headers = form(b"x" * 5000)
    assert asked(app, tmp_path, UPLOAD, body, headers=headers)[0] == 200
    assert app.bodies[0].count(b"x" * 5000) == 1 and b'filename="a.png"' in app.bodies[0]


@pytest.mark.parametrize(("stored", "status"), [(0, 200), (60_000, 200), (140_000, 507)])
def test_uploads_have_a_total(tmp_path: Path, stored: int, status: int) -> None:
    (tmp_path / "before").write_bytes(b"x" * stored)
    app, (body, headers) = App(), form(b"x" * 80_000)
    found, answer = asked(app, tmp_path, UPLOAD, body, headers=headers)
    assert found == status
    if status == 507:
        sentence(found, answer, 507)
        assert "150,000 bytes" in answer["detail"] and app.bodies == []


def test_small_files_count_as_blocks_so_that_nobody_fills_the_disk_with_them(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "a").touch()
    assert stored_bytes(tmp_path) == 40 * BLOCK
    body, headers = form()
    assert asked(App(), tmp_path, UPLOAD, body, headers=headers)[0] == 507


def test_uploads_that_are_on_their_way_count(tmp_path: Path) -> None:
    """Many at once would otherwise all find room."""
    body, headers = form(b"x" * 60_000)
    statuses: list[int] = []
    everyone = asyncio.Event()

    async def visit(gate: RequestGate, number: int) -> None:
        async def receive() -> dict:
            await everyone.wait()
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                everyone.set()  # the refused ones answer before a body has come

        heads = [(b"content-length", str(len(body)).encode()), *headers]
        await gate({"type": "http", "path": UPLOAD, "method": "POST", "headers": heads}, receive, send)

    async def visits() -> None:
        gate = RequestGate(App(), LIMITS, tmp_path, HANDLERS)
        await asyncio.gather(*(visit(gate, number) for number in range(5)))
        statuses.append(-gate._incoming)

    asyncio.run(visits())
    assert sorted(statuses) == [0, 200, 200, 507, 507, 507]


@pytest.mark.parametrize(("size", "declared"), [(200_000, True), (10, False)])
def test_an_upload_that_is_too_large_or_does_not_say_how_large_it_is_is_refused(
    tmp_path, size: int, declared: bool
) -> None:
    app = App()
    sentence(*asked(app, tmp_path, UPLOAD, b"x" * size, declared=declared), 413)
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
    message = wrong_value(*asked(app, folder, JOIN, named(path)), "file")
    assert app.bodies == [] and "passwd" not in message and "/" not in message


def test_a_file_has_no_place_where_a_text_belongs(tmp_path: Path) -> None:
    for value in ({"path": "/etc/passwd"}, [{"a": [{"b": {"path": "/etc/passwd"}}]}]):
        wrong_value(*asked(App(), tmp_path, JOIN, call(1, value, 0)), "law")


@pytest.mark.parametrize(("data", "name"), [(({}, 0), "law"), (("exact", []), "seed"), (("exact", {"a": 1}), "seed")])
def test_a_value_of_another_type_is_refused_by_the_name_of_its_input(tmp_path: Path, data: tuple, name: str) -> None:
    app = App()
    wrong_value(*asked(app, tmp_path, JOIN, call(1, *data)), name)
    assert app.bodies == []


@pytest.mark.parametrize("fields", [{"data": ["exact"]}, {"data": ["exact", 0, 1]}, {"data": None}, {"fn_index": 9},
                                    {"fn_index": "1"}, {"fn_index": True}, {"session_hash": None}, {"session_hash": ""},
                                    {"session_hash": "x" * 65}, {"session_hash": 7}])  # fmt: skip
def test_a_call_that_no_page_makes_is_refused(tmp_path: Path, fields: dict) -> None:
    app = App()
    found, answer = asked(
        app,
        tmp_path,
        JOIN,
        call(1, "exact", 0, **fields)
        if "data" not in fields
        else json.dumps({**json.loads(call(1)), **fields}).encode(),
    )
    sentence(found, answer, 400)
    assert app.bodies == [] and next(iter(fields)) in answer["detail"]


def test_a_field_that_no_page_sends_does_not_pass(tmp_path: Path) -> None:
    app = App()
    assert asked(app, tmp_path, JOIN, call(2, batched=True, oauth_token="x", simple_format=True, event_id=7))[0] == 200
    (passed,) = map(json.loads, app.bodies)
    assert set(passed) == {"data", "fn_index", "session_hash", "trigger_id", "event_data"}


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 900, b"", b"[]", b"7", b"null"])
def test_invalid_json_is_refused(tmp_path: Path, body: bytes) -> None:
    sentence(*asked(App(), tmp_path, JOIN, body), 400)


def test_a_full_queue_says_so_in_our_words(tmp_path: Path) -> None:
    app = App(503, b'{"detail": "Queue is full. Max size is 3 and size is 3."}')
    status, answer = asked(app, tmp_path, JOIN, call(2))
    sentence(status, answer, 503)
    assert "at most 3 requests to wait" in answer["detail"]

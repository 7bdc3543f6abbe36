"""Requests that no page sends, to the served app: each is answered with a sentence, and none leaves a traceback in the log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

gradio = pytest.importorskip("gradio", reason="needs the extra `web`")

import httpx  # noqa: E402
from PIL import Image  # noqa: E402

from tests.evaluate.report.kept import grid, written  # noqa: E402
from tests.web.served import app  # noqa: E402

HEAD = 'Content-Disposition: form-data; name="files"; filename="NAME"\r\nContent-Type: image/png'


class Visitor:
    """A program that speaks with the app without gradio_client."""

    def __init__(self, address: str):
        self.address, self.api, self.count = address, f"{address}gradio_api/", 0
        self.handlers = {one["api_name"]: one["id"] for one in httpx.get(f"{address}config").json()["dependencies"]}

    def call(self, name: str | int, data: Any, **fields: Any) -> str:
        """The sentence that refuses a call, or "done"."""
        self.count += 1
        session = f"hostile{self.count}"
        number = self.handlers.get(name, name) if isinstance(name, str) else name
        body = {"data": data, "fn_index": number, "session_hash": session, **fields}
        answer = httpx.post(f"{self.api}queue/join", json=body)
        if answer.status_code != 200:
            detail = answer.json()["detail"]
            return detail if isinstance(detail, str) else f"{detail[0]['parameter_name']}: {detail[0]['message']}"
        with httpx.stream("GET", f"{self.api}queue/data?session_hash={session}", timeout=60) as stream:
            for line in stream.iter_lines():
                message = json.loads(line.removeprefix("data:")) if line else {"msg": ""}
                if message["msg"] == "process_completed":
                    return "done" if message["success"] else message["output"]["error"]
        raise AssertionError("the call did not end")

    def upload(self, name: bytes = b"a.png", content: bytes = b"x", count: int = 1, head: str = HEAD) -> httpx.Response:
        part = b"--B\r\n" + head.encode().replace(b"NAME", name) + b"\r\n\r\n" + content + b"\r\n"
        headers = {"content-type": "multipart/form-data; boundary=B"}
        return httpx.post(f"{self.api}upload", content=part * count + b"--B--\r\n", headers=headers)


def sentence(text: Any) -> None:
    assert isinstance(text, str) and text.count("expected") == 1 and text.count(", got ") == 1 and len(text) < 300, text
    assert "Error" not in text and "\n" not in text and "/tmp" not in text


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    runs = tmp_path_factory.mktemp("runs")
    written(runs / "one", grid())
    with app(runs, seconds=2) as address:
        yield Visitor(address)


@pytest.fixture(scope="module")
def stored(visitor: Visitor) -> dict[str, Any]:
    """A picture that was uploaded, as gradio names it."""
    held = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(held, "PNG")
    (path,) = visitor.upload(content=held.getvalue()).json()
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No request of this file is an error of ours."""
    with caplog.at_level(logging.WARNING):
        yield
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err + caplog.text


CAPTION = ("file", "text", "drafter", "law", "temperature", "seed", "tokens")
GOOD = (None, "What is it?", "lookup", "exact", 0, 0, 4)


def caption(stored: dict[str, Any], **changes: Any) -> list[Any]:
    return [changes.get(name, stored if name == "file" else value) for name, value in zip(CAPTION, GOOD, strict=True)]


def test_a_call_with_a_value_of_each_right_type_runs(visitor: Visitor, stored: dict) -> None:
    assert visitor.call("caption", caption(stored)) == "done"
    assert visitor.call("caption", caption({**stored, "size": "x", "url": 7, "orig_name": []})) == "done"


@pytest.mark.parametrize("value", ["a.png", "/etc/passwd", "http://127.0.0.1:1/a.png", 7, True, ["a.png"], [], {},
                                   {"url": "a"}, {"path": 7}, {"path": "/etc/passwd"},
                                   {"path": None, "url": "http://a"}])  # fmt: skip
def test_a_file_of_a_wrong_type(visitor: Visitor, stored: dict, value: Any) -> None:
    sentence(visitor.call("caption", caption(stored, file=value)))
    sentence(visitor.call("show", [value]))


@pytest.mark.parametrize("name", CAPTION[1:])
@pytest.mark.parametrize("value", [None, True, "0", [], ["exact"], {}, {"path": "/etc/passwd"}, -1, 1e300, 10**400])
def test_a_value_of_a_wrong_type_or_out_of_range(visitor: Visitor, stored: dict, name: str, value: Any) -> None:
    found = visitor.call("caption", caption(stored, **{name: value}))
    if (name, value) == ("text", "0"):
        assert found == "done"
    else:
        sentence(found)


@pytest.mark.parametrize("value", [0.5, 1.5, 2.0000001])
def test_a_fractional_seed_is_refused_and_not_rounded(visitor: Visitor, stored: dict, value: float) -> None:
    for name, data in (
        ("caption", caption(stored, seed=value)),
        ("image", ["a red circle", "scd", "exact", 0, value]),
        ("continuous", ["red circle", "mar", "head:window=32", "exact", 1, value]),
    ):
        found = visitor.call(name, data)
        sentence(found)
        assert found.startswith("seed: ")


@pytest.mark.parametrize("name", ["caption", "image", "continuous", "pareto", "show", "_switch"])
def test_an_argument_that_is_missing_or_left_over(visitor: Visitor, stored: dict, name: str) -> None:
    for data in ([], caption(stored)[:-1], [None] * 9, {}, "x", None, 7):
        sentence(visitor.call(name, data))


@pytest.mark.parametrize("number", [999, -1, "0", None, 1.0, True, [0], 10**30, "/caption"])
def test_a_handler_that_does_not_exist(visitor: Visitor, number: Any) -> None:
    sentence(visitor.call(number, []))


@pytest.mark.parametrize("session", [None, 7, "", "x" * 1000, "a\0b", [], {}])
def test_a_session_of_a_wrong_type(visitor: Visitor, session: Any) -> None:
    for path in ("queue/join", "run/predict", "cancel"):
        body = {"data": ["one"], "fn_index": visitor.handlers["pareto"], "session_hash": session, "event_id": "e"}
        answer = httpx.post(visitor.api + path, json=body)
        assert answer.status_code == 400
        sentence(answer.json()["detail"])


@pytest.mark.parametrize("event", [None, 7, [], {}, {"index": "x"}, {"index": 99}, {"index": [0, 1]}, {"value": 1}])
def test_a_selection_of_an_example_that_does_not_exist(visitor: Visitor, event: Any) -> None:
    sentence(visitor.call("pick", [], event_data=event))


def test_every_handler_refuses_objects_and_takes_no_part_of_them(visitor: Visitor) -> None:
    for entry in httpx.get(f"{visitor.address}config").json()["dependencies"]:
        if entry["inputs"]:
            for value in ({}, [], [[]], {"path": "/etc/passwd"}):
                sentence(visitor.call(entry["id"], [value] * len(entry["inputs"])))


def test_a_stream_of_a_session_that_never_joined_ends(visitor: Visitor) -> None:
    assert "404" in httpx.get(f"{visitor.api}queue/data?session_hash=nobody", timeout=20).text
    answer = httpx.get(f"{visitor.api}queue/data")
    assert answer.status_code == 422
    sentence(answer.json()["detail"])


@pytest.mark.parametrize(
    "path",
    ["gradio_api/dev/reload", "gradio_api/heartbeat/a", "gradio_api/openapi.json", "gradio_api/info?all_endpoints=true",
     "gradio_api/info/", "gradio_api/queue/status", "gradio_api/call/caption/x", "gradio_api/call/v2/caption/x",
     "gradio_api/proxy=http://a", "gradio_api/user", "gradio_api/file=/etc/passwd", "gradio_api/file=%00", "openapi.json",
     "docs", "logout", "monitoring", "gradio_api/stream/a/b/1/playlist.m3u8", "gradio_api/runs", "manifest.json"],
)  # fmt: skip
def test_addresses_that_the_page_does_not_use_are_closed_and_end(visitor: Visitor, path: str) -> None:
    answer = httpx.get(visitor.address + path, timeout=5)
    assert answer.status_code == 404
    sentence(answer.json()["detail"])


def test_every_route_of_gradio_is_closed_but_those_of_the_page(visitor: Visitor) -> None:
    """A version that adds a route does not open it."""
    routes = gradio.routes.App.create_app(gradio.Blocks()).openapi()["paths"]
    assert len(routes) > 60
    found = set()
    for path, methods in routes.items():
        for method in map(str.upper, methods):
            with httpx.stream(method, visitor.address.rstrip("/") + path, timeout=5) as answer:
                if answer.status_code != 404:
                    found.add((method, path))
    posted = {("POST", f"/gradio_api/{name}") for name in ("queue/join", "cancel", "reset", "upload")}
    read = {
        ("GET", path)
        for path in (
            "/",
            "/config",
            "/theme.css",
            "/favicon.ico",
            "/gradio_api/info",
            "/gradio_api/app_id",
            "/gradio_api/startup-events",
            "/gradio_api/queue/data",
            "/gradio_api/upload_progress",
        )
    }
    assert found <= posted | read | {("HEAD", "/")} and found >= posted | {("GET", "/"), ("GET", "/config")}


@pytest.mark.parametrize("origin", ["http://localhost:9999", "http://127.0.0.1:1", "http://evil.example", "null"])
def test_a_page_of_another_origin_drives_nothing(visitor: Visitor, origin: str) -> None:
    join = {"data": ["one"], "fn_index": visitor.handlers["pareto"], "session_hash": "origin"}
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    for method, path, more in (
        ("GET", "config", {}),
        ("POST", "gradio_api/queue/join", {"json": join}),
        ("OPTIONS", "gradio_api/queue/join", {"headers": preflight}),
        ("POST", "gradio_api/upload", {"files": {"files": ("a.png", b"x")}}),
    ):
        headers = {"origin": origin, **more.pop("headers", {})}
        answer = httpx.request(method, visitor.address + path, headers=headers, **more)
        assert answer.status_code == 403
        sentence(answer.json()["detail"])
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_the_page_itself_drives_it_and_invites_no_other(visitor: Visitor) -> None:
    answer = httpx.get(f"{visitor.address}config", headers={"origin": visitor.address.rstrip("/")})
    assert answer.status_code == 200 and not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    "name",
    [
        b'a\\"b.png',
        b"a\0b.png",
        b"%22a.png",
        b"a;b.png",
        "日.png".encode(),
        b"..",
        b"/",
        b"x" * 400 + b".png",
        b"\xff.png",
    ],
)
def test_a_file_of_a_strange_name_is_stored_and_can_be_used(visitor: Visitor, stored: dict, name: bytes) -> None:
    content = Path(stored["path"]).read_bytes()
    (path,) = visitor.upload(name, content).json()
    assert Path(path).is_file() and '"' not in path and "\0" not in path
    assert visitor.call("caption", caption({**stored, "path": path})) == "done"
    assert httpx.get(f"{visitor.api}file={path}").content == content


@pytest.mark.parametrize(
    "head",
    [HEAD.replace("NAME", ""), HEAD.replace('; filename="NAME"', ""), HEAD.replace('"files"', '"x"'), "A: b", ""],
)
def test_an_upload_without_a_name(visitor: Visitor, head: str) -> None:
    answer = visitor.upload(head=head)
    assert answer.status_code == 400
    sentence(answer.json()["detail"])


@pytest.mark.parametrize("count", [2, 50, 1001])
def test_an_upload_of_several_files(visitor: Visitor, count: int) -> None:
    answer = visitor.upload(count=count)
    assert answer.status_code == 400
    sentence(answer.json()["detail"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "multipart/form-data"},
        {"content-type": "application/json"},
        {"content-type": "multipart/form-data; boundary=B"},
    ],
)
def test_an_upload_that_is_no_form(visitor: Visitor, headers: dict[str, str]) -> None:
    answer = httpx.post(f"{visitor.api}upload", content=b"xyz", headers=headers)
    assert answer.status_code == 400
    sentence(answer.json()["detail"])


def test_uploads_have_a_total(tmp_path: Path) -> None:
    with app(tmp_path, folder_bytes=3_000_000) as address:
        visitor = Visitor(address)
        answers = [visitor.upload(content=bytes([number]) * 900_000) for number in range(6)]
        statuses = [answer.status_code for answer in answers]
        assert statuses == sorted(statuses) and 1 <= statuses.count(200) <= 3 and set(statuses) == {200, 507}
        sentence(answers[-1].json()["detail"])
        folder = Path(answers[0].json()[0]).parents[1]
        assert sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) <= 3_000_000
        assert httpx.get(address).status_code == 200

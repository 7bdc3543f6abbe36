"""Calls of the page's handlers: each is checked and rewritten, so that only checked values reach the app."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.web.limits import RefusedRequest
from mmspec.web.uploads import NO_UPLOAD, is_uploaded

LONGEST_NAME = 64  # characters of a session or an event
NO_JSON = "request: expected JSON, got something else, use the page or gradio_client"
NO_OBJECT = "request: expected a JSON object, got something else, use the page or gradio_client"
FILE_META = {"_type": "gradio.FileData"}


class RefusedValue(RefusedRequest):
    """The value of the input `name` was refused; the reason is a sentence without the name."""

    def __init__(self, name: str, reason: str):
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


@dataclass(frozen=True, slots=True)
class HandlerInput:
    """An input of a handler, named as the handler's argument."""

    name: str
    is_file: bool = False  # whether the input is an uploaded file


Handlers = Mapping[int, tuple[HandlerInput, ...]]
Check = Callable[[dict[str, Any], Handlers, Path], dict[str, Any]]


def checked_body(check: Check, body: bytes, handlers: Handlers, uploads: Path) -> bytes:
    """Check the body of a request by the check of its address, and return a body with the checked fields and no others.
    A body without a field or with one of another type is a RefusedRequest. It is a RefusedValue if the value of an
    input has another type, or is a file that was not uploaded."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedRequest(NO_JSON) from None
    if not isinstance(request, dict):
        raise RefusedRequest(NO_OBJECT)
    return json.dumps(check(request, handlers, uploads)).encode()


def checked_call(request: dict[str, Any], handlers: Handlers, uploads: Path) -> dict[str, Any]:
    """Check the call of a handler: its number, a value for each input, and the type of each value."""
    number = _handler("fn_index", request, handlers)
    inputs, values = handlers[number], request.get("data")
    if not isinstance(values, list) or len(values) != len(inputs):
        names = ", ".join(each.name for each in inputs) or "no input"
        count = f"{len(values)} values" if isinstance(values, list) else "no list"
        raise RefusedRequest(
            f"data: expected a list with a value for each of {names}, got {count}, send them in this order"
        )
    trigger, event = request.get("trigger_id"), request.get("event_data")
    index = event.get("index") if isinstance(event, dict) else None
    return {
        "data": [_value(each, value, uploads) for each, value in zip(inputs, values, strict=True)],
        "fn_index": number,
        "session_hash": _name("session_hash", request),
        "trigger_id": trigger if _is_whole(trigger) and abs(trigger) < 1 << 31 else None,
        "event_data": {"index": index if _is_whole(index) else None, "value": None},
    }


def checked_cancel(request: dict[str, Any], handlers: Handlers, uploads: Path) -> dict[str, Any]:
    return {
        "session_hash": _name("session_hash", request),
        "fn_index": _handler("fn_index", request, handlers),
        "event_id": _name("event_id", request),
    }


def checked_reset(request: dict[str, Any], handlers: Handlers, uploads: Path) -> dict[str, Any]:
    """Check a request that resets a call, which the app answers without an effect."""
    return {"event_id": _name("event_id", request)}


def _handler(name: str, request: dict[str, Any], handlers: Handlers) -> int:
    number = request.get(name)
    if not _is_whole(number) or number not in handlers:
        raise RefusedRequest(f"{name}: expected the number of a handler, got another, take one from /config")
    return number


def _name(name: str, request: dict[str, Any]) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise RefusedRequest(f"{name}: expected a text of 1 to {LONGEST_NAME} characters, got something else, send one")
    return value


def _value(control: HandlerInput, value: Any, uploads: Path) -> Any:
    if control.is_file:
        return _file(control.name, value, uploads)
    if value is None or isinstance(value, str | int | float):
        return value
    raise RefusedValue(control.name, f"expected a text or a number, got {_kind(value)}, send one")


def _file(name: str, value: Any, uploads: Path) -> dict[str, Any] | None:
    """Return an uploaded file with its path alone; other fields could have any type."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise RefusedValue(name, f"expected an uploaded file, got {_kind(value)}, upload the picture")
    path = value.get("path")
    if not is_uploaded(path, uploads):
        raise RefusedValue(name, NO_UPLOAD)
    return {"path": path, "meta": FILE_META}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "a text"
    return {list: "a list", dict: "an object"}.get(type(value), "a number")

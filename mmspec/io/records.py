"""Records of requests in files of data: their fields, and conversations in the forms of LLaVA and of `messages`.
Training and evaluation read the same records. A field that no reader uses is refused by its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.io.readers import contents_digest, read_placed_lines, read_text

IMAGE_MARK = "<image>"
# notes of published files about where a record comes from
NOTES = ("id", "metadata", "model", "source", "category")
_TEXTS = ("text", "prompt", "messages", "conversations")
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}
_URL = ("http://", "https://", "data:")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A record as a request, with its pictures before the user's first text."""

    turns: tuple[tuple[str, str], ...]  # (role, text), the user's last turn included, without the marks of pictures
    images: tuple[str, ...] = ()  # the names of the pictures
    answer: str | None = None  # to the last turn, None if the record has none


def read_records(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a JSONL file, or of a JSON file with a list of them, each with its place for errors."""
    text = read_text(file)
    if not text.lstrip().startswith("["):
        return read_placed_lines(file)
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{file}: expected a list of JSON objects, got {text[:40]!r} ({error}); write the file again"
        ) from error
    places = [f"{file}, record {number}" for number in range(1, len(records) + 1)]
    for place, record in zip(places, records, strict=True):
        if not isinstance(record, dict):
            raise ValueError(f"{place}: expected a JSON object, got {type(record).__name__}; write the file again")
    return list(zip(places, records, strict=True))


def check_names(place: str, record: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a record with a field that is not among `known`, since nothing would read it."""
    if unknown := sorted(set(record) - set(known)):
        raise ValueError(
            f"{place}: expected fields among {', '.join(known)}, got {', '.join(unknown)}; rename or remove them"
        )


def texts_in(place: str, name: str, value: Any) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple, empty for None."""
    items = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError(f"{place}: expected a text or a list of texts in {name}, got {_short(value)}; correct it")
    return tuple(items)


def answer_in(place: str, name: str, value: Any) -> str | None:
    """Return an answer, a number as its text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{place}: expected a text as {name}, got {_short(value)}; write a text")
    return str(value)


def images_in(place: str, record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in the field `image` or `images`: a name or a list of names. A record has one of them at most."""
    names = [name for name in ("image", "images") if record.get(name) is not None]
    if len(names) > 1:
        raise ValueError(f"{place}: expected image or images, got both; keep one of them")
    return texts_in(place, names[0], record[names[0]]) if names else ()


def request_in(place: str, record: Mapping[str, Any]) -> ParsedRequest:
    """Return the request of a record: its `text` (or `prompt`) with `history`, `messages` or LLaVA's `conversations`."""
    forms = [name for name in _TEXTS if record.get(name) is not None]
    if len(forms) != 1:
        got = " and ".join(forms) or ", ".join(sorted(record)) or "nothing"
        raise ValueError(
            f"{place}: expected a JSON object with a text in one of the fields {', '.join(_TEXTS)}, got {got}; correct it"
        )
    name, answer = forms[0], answer_in(place, "answer", record.get("answer"))
    if name in ("text", "prompt"):
        turns = _turns_in(place, "history", record.get("history") or [])
        turns.append(_turn(place, name, "user", record[name]))
    else:
        if record.get("history") is not None:
            raise ValueError(f"{place}: expected all turns in {name}, got history too; move them there")
        turns = _turns_in(place, name, record[name])
        if turns and turns[-1].role == "assistant" and not turns[-1].images:
            if answer is not None:
                raise ValueError(f"{place}: expected the answer in {name} or in answer, got both; remove one of them")
            answer = turns.pop().text
    users = [turn for turn in turns if turn.role == "user"]
    if late := [turn for turn in turns if turn.images and turn is not (users or [None])[0]]:
        raise ValueError(
            f"{place}: expected pictures in the user's first turn of {name}, got some in a later turn or in "
            f"that of the {late[0].role}; move them, or leave the record out"
        )
    if not users or turns[-1].role != "user":
        raise ValueError(f"{place}: expected a user's turn before the answer in {name}, got none; complete it")
    if turns[turns[0].role == "system"].role != "user":
        raise ValueError(
            f"{place}: expected a conversation that a user begins in {name}, got an answer first; remove it"
        )
    shown = _shown(place, images_in(place, record), users[0].images)
    return ParsedRequest(tuple((turn.role, turn.text) for turn in turns), shown, answer)


@dataclass(frozen=True, slots=True)
class _ReadTurn:
    """A turn. `images` holds a name for each of its pictures, None where a mark alone stands for it."""

    role: str
    text: str
    images: tuple[str | None, ...] = ()


def _turns_in(place: str, field: str, value: Any) -> list[_ReadTurn]:
    turns = []
    for turn in value if isinstance(value, list) else [value]:
        names = ("from", "value") if isinstance(turn, dict) and "from" in turn else ("role", "content")
        if not isinstance(turn, dict) or set(turn) != set(names):
            got = ", ".join(sorted(turn)) if isinstance(turn, dict) else _short(turn)
            raise ValueError(
                f"{place}: expected turns of role and content, or of from and value, in {field}, got {got}; "
                "correct them"
            )
        role = _ROLES.get(turn[names[0]]) if isinstance(turn[names[0]], str) else None
        if role is None:
            raise ValueError(
                f"{place}: expected the roles {', '.join(_ROLES)} in {field}, got {turn[names[0]]!r:.60}; "
                "leave such turns out"
            )
        turns.append(_turn(place, field, role, turn[names[1]]))
    return turns


def _turn(place: str, field: str, role: str, content: Any) -> _ReadTurn:
    images, text = [], content
    if isinstance(content, list):
        pieces = []
        for part in content:
            if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
                pieces.append(part["text"])
            else:
                images.append(_picture(place, field, part))
                pieces.append(IMAGE_MARK)
        text = "".join(pieces)
    if not isinstance(text, str):
        raise ValueError(f"{place}: expected a text or a list of parts in {field}, got {_short(content)}; correct it")
    text, count = _without_marks(place, field, text)
    if images and len(images) != count:
        raise ValueError(f"{place}: expected parts or marks for pictures in {field}, got both; remove {IMAGE_MARK}")
    return _ReadTurn(role, text, tuple(images) or (None,) * count)


def _picture(place: str, field: str, part: Any) -> str | None:
    """Return the name of the picture in a part, None if the record names it elsewhere."""
    if not isinstance(part, dict) or part.get("type") not in ("image", "image_url"):
        raise ValueError(f"{place}: expected parts of type text or image in {field}, got {_short(part)}; remove others")
    name = next((part[key] for key in ("image", "path", "url", "image_url") if part.get(key) is not None), None)
    if isinstance(name, dict) and set(name) == {"url"}:
        name = name["url"]
    if name is not None and (not isinstance(name, str) or name.startswith(_URL)):
        raise ValueError(f"{place}: expected the file of a picture in {field}, got {_short(name)}; store it as a file")
    return name


def _without_marks(place: str, field: str, text: str) -> tuple[str, int]:
    """Return the text without the marks of pictures at its beginning and end, and their number."""
    count, rest = text.count(IMAGE_MARK), text
    if not count:
        return text, 0
    while (stripped := rest.strip()) != (rest := stripped.removeprefix(IMAGE_MARK).removesuffix(IMAGE_MARK)):
        pass
    if IMAGE_MARK in rest:
        raise ValueError(
            f"{place}: expected pictures before the text in {field}, got {IMAGE_MARK} within it; move it to "
            "the beginning"
        )
    return rest.strip(), count


def _shown(place: str, names: tuple[str, ...], marks: tuple[str | None, ...]) -> tuple[str, ...]:
    """Return the pictures of a request, of which the record names some beside the text and the text itself others."""
    open_marks = sum(name is None for name in marks)
    if open_marks and open_marks != len(names):
        raise ValueError(
            f"{place}: expected a picture in images for each {IMAGE_MARK}, got {len(names)} for {open_marks}; "
            "make them match"
        )
    if not open_marks:
        return names + tuple(marks)
    rest = iter(names)
    return tuple(next(rest) if name is None else name for name in marks)


def record_digest(record: Mapping[str, Any], files: Sequence[Path]) -> str:
    contents = [json.dumps(record, sort_keys=True), *map(contents_digest, files)]
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()


def _short(value: Any) -> str:
    return f"{value!r:.60}"

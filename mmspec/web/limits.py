"""Limits of a request. The server checks all values, since programs can call its interface without the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

LARGEST_SEED = (1 << 31) - 1


class RefusedRequest(ValueError):
    """A refused request. The message is a sentence: the expected value, the received value, and a remedy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server, each above 0."""

    file_bytes: int = 20_000_000  # of an uploaded picture
    folder_bytes: int = 500_000_000  # of the folder that holds the uploads of all visitors and the pictures of the page
    pixels: int = 40_000_000  # of an uploaded picture
    body_bytes: int = 1_000_000  # of any other request
    characters: int = 2_000  # of a question or a prompt
    tokens: int = 512  # of an answer
    blocks: int = 16  # of a video
    waiting: int = 16  # the requests in the queue
    seconds: float = 120.0  # the time limit of a lane
    rows: int = 500  # of a run's table

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name}: expected a number above 0, got {getattr(self, field.name)}, raise it")


def checked_text(what: str, text: Any, limits: Limits) -> str:
    """Return a question or prompt without surrounding blanks."""
    if not isinstance(text, str):
        raise RefusedRequest(f"{what}: expected a text, got something else, write a few words")
    if not text.strip():
        raise RefusedRequest(f"{what}: expected a text, got an empty one, write a few words")
    if len(text) > limits.characters:
        raise RefusedRequest(
            f"{what}: expected at most {limits.characters:,} characters, got {len(text):,}, shorten it"
        )
    if any(0xD800 <= ord(each) <= 0xDFFF for each in text):
        raise RefusedRequest(f"{what}: expected whole characters, got half of one, write the text again")
    return text.strip()


def checked_whole(what: str, value: Any, least: int, most: int) -> int:
    """Return a whole number within its bounds. A fraction is refused and not rounded."""
    number = _number(what, value)
    if number != int(number) or not least <= number <= most:
        raise RefusedRequest(f"{what}: expected a whole number from {least} to {most:,}, got {number:g}, change it")
    return int(number)


def checked_number(what: str, value: Any, least: float, most: float) -> float:
    number = _number(what, value)
    if not least <= number <= most:
        raise RefusedRequest(f"{what}: expected a number from {least:g} to {most:g}, got {number:g}, change it")
    return number


def checked_choice(what: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise RefusedRequest(f"{what}: expected one of {', '.join(known)}, got something else, pick one of these")
    return value


def _number(what: str, value: Any) -> float:
    """Return a finite number; whole numbers beyond the range of a float are refused too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RefusedRequest(
            f"{what}: expected a number, got {'none' if value is None else 'something else'}, enter one"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RefusedRequest(f"{what}: expected a finite number, got another, enter one")
    return number

"""What `mmspec image` draws with, whatever the model's tokens are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Opened:
    """A pipeline and how it is called. name: of the model.   given: prompts as the pipeline takes them.
    arguments: of every call.   total: values of a picture.   stride: of them in a row.   passes: of plain decoding.
    settings: what the record says of how values are drawn, by name.
    """

    pipeline: Any
    name: str
    given: Callable[[Sequence[str]], list]
    arguments: dict[str, Any]
    total: int
    stride: int
    passes: int
    settings: dict[str, Any]

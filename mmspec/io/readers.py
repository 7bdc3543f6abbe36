"""Input files: the one place that opens JSON and safetensors, whose errors name the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def read_text(path: str | Path) -> str:
    """A file's UTF-8 text.   Raises ValueError for a file that is missing, cannot be read or holds something else."""
    content = _bytes(path, "a text file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: expected UTF-8 text, got {error.reason} at byte {error.start}; save it as UTF-8"
        ) from error


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object.   Raises ValueError for a missing file and for anything else in it."""
    return _object(_bytes(path, "a JSON file"), f"{path}")


def _bytes(path: str | Path, what: str) -> bytes:
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"{path}: expected {what}, got {'a folder' if path.is_dir() else 'none there'}; check the path"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: expected a file that can be read, got {error.strerror}; check its rights") from error


def read_json_lines(path: str | Path, *, torn: bool = False) -> list[dict[str, Any]]:
    """The JSON objects of a file that holds one a line.

    torn: whether a last line without its end, which a killed writer leaves, is left out instead of refused.
    Raises ValueError for a missing file and for a line that holds anything else.
    """
    lines = read_text(path).split("\n")
    if torn or not lines[-1]:
        lines.pop()
    return [_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _object(text: str | bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # too many brackets are no config either
        raise ValueError(f"{place}: expected JSON, got {text[:40]!r} ({error}); write the file again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(value).__name__}; write the file again")
    return value


@contextmanager
def open_tensors(path: str | Path) -> Iterator[Any]:
    """A safetensors file, opened as `safetensors.safe_open` opens it: nothing is read before it is asked for.

    Raises ValueError for a missing file, a file that is damaged or holds something else, and a tensor it lacks.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: expected a safetensors file, got none there; check the path")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: expected safetensors, got a file that does not open as such or lacks a tensor ({error}) "
                         "and may be cut off or a pickle; fetch or save it again") from error  # fmt: skip


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file.   Raises ValueError as `open_tensors` does."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def read_shapes(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file on the meta device: shapes and dtypes from its header, nothing of their contents.

    Raises ValueError as `open_tensors` does.
    """
    import torch

    with open_tensors(path) as file:
        with torch.device("meta"):
            return {name: _empty(file.get_slice(name)) for name in file.keys()}


def _empty(stored: Any) -> Tensor:
    import torch

    return torch.empty(stored.get_shape(), dtype=getattr(torch, _DTYPES.get(stored.get_dtype(), "float32")))


# as the header writes them; what is not listed is some narrow float
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
           "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip


@contextmanager
def naming(place: str | Path) -> Iterator[None]:
    """Puts the file or folder `place` in front of a ValueError that does not name it yet."""
    try:
        yield
    except ValueError as error:
        if str(place) in str(error):
            raise
        raise ValueError(f"{place}: {error}") from error

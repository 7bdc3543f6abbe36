"""Input files: the only functions that open JSON and safetensors. Their errors name the file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file, without the byte order mark that some editors write."""
    content = _bytes(path, "a text file")
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: expected UTF-8 text, got {error.reason} at byte {error.start}; save it as UTF-8"
        ) from error


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a file with a JSON object."""
    return _object(_bytes(path, "a JSON file"), f"{path}")


def contents_digest(path: str | Path) -> str:
    """Return a hash of a file's contents; a missing file counts as an empty file."""
    path = Path(path)
    return hashlib.sha256(_bytes(path, "a file") if path.is_file() else b"").hexdigest()


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
    """Read the JSON objects of a file with an object a line; blank lines are left out. `torn` ignores a last line
    without an end, which a killed writer leaves."""
    return [record for _, record in read_placed_lines(path, torn=torn)]


def read_placed_lines(path: str | Path, *, torn: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of `read_json_lines`, each with its place for errors."""
    lines = read_text(path).split("\n")
    if torn or not lines[-1]:
        lines.pop()
    # only line feeds end a line: JSON texts may hold other separators
    placed = [(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    return [(place, _object(line, place, "a JSON object")) for place, line in placed]


def _object(text: str | bytes, place: str, form: str = "JSON") -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: too many brackets
        raise ValueError(f"{place}: expected {form}, got {text[:40]!r} ({error}); write the file again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(value).__name__}; write the file again")
    return value


@contextmanager
def open_tensors(path: str | Path) -> Iterator[Any]:
    """Open a safetensors file with `safetensors.safe_open`: tensors are read on demand."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: expected a safetensors file, got none there; check the path")
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: expected safetensors, got a file that cannot be read ({error}); it may be cut off or "
            "a pickle, fetch or save it again"
        ) from error


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def read_shapes(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file on the meta device: shapes and dtypes from its header only."""
    import torch

    with open_tensors(path) as file:
        with torch.device("meta"):
            return {name: _empty(file.get_slice(name)) for name in file.keys()}


def _empty(stored: Any) -> Tensor:
    import torch

    return torch.empty(stored.get_shape(), dtype=getattr(torch, _DTYPES.get(stored.get_dtype(), "float32")))


# names in the header; unlisted dtypes are narrow floats
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
           "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}  # fmt: skip


@contextmanager
def naming(place: str | Path) -> Iterator[None]:
    """Prepend the file or folder `place` to a ValueError that does not name it yet."""
    try:
        yield
    except ValueError as error:
        if str(place) in str(error):
            raise
        raise ValueError(f"{place}: {error}") from error

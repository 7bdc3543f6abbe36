"""Output files that are either complete or absent."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path`; moves it onto `path` on success and deletes it on any error.

    Works with every writer that takes a path (safetensors, PIL, matplotlib). The suffix of `path` is kept.
    Raises ValueError when the folder does not exist or `path` is a folder or a device.
    """
    final = destination(path)
    # not tempfile: its files are readable by their owner only, and a rename would keep that
    temporary = final.with_name(f".{final.stem}.{secrets.token_hex(4)}{final.suffix}")
    try:
        yield temporary
        os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def destination(path: str | os.PathLike[str]) -> Path:
    """The file that `path` leads to. Raises ValueError for a folder, a device, and where the folder does not exist."""
    final = Path(path).resolve()
    if final.is_dir():
        raise ValueError(f"expected a file name to write to, got the folder {str(path)!r}, name a file inside it")
    if final.exists() and not final.is_file():
        raise ValueError(f"expected a file to write to, got the device {str(path)!r}, name a file")
    if not final.parent.is_dir():
        raise ValueError(f"expected an existing folder for {str(path)!r}, got none, create {str(final.parent)!r} first")
    return final


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` as UTF-8 to `path`: a reader sees the old content or the new, never a part."""
    with replacing(path) as temporary, open(temporary, "x", encoding="utf-8", newline="\n") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as indented JSON to `path` atomically; raises ValueError on NaN and Inf, which JSON lacks."""
    write_text_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

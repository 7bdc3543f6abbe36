"""Output files that are complete or absent, logs that grow by lines, and folders locked to one run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK = "lock"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it to `path` on success and delete it on any error. Works with every
    writer that accepts a path (safetensors, PIL, matplotlib). The suffix of `path` is kept."""
    final = destination(path)
    # not tempfile: only the owner could read its files, even after the rename
    temporary = final.with_name(f".{final.stem}.{secrets.token_hex(4)}{final.suffix}")
    try:
        with writing(path, temporary):
            yield temporary
            os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, new or empty; move it to `path` on success and delete it on any error."""
    final = Path(path).absolute()
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        got = "a folder with files in it" if final.is_dir() else "a file"
        raise ValueError(f"expected a new or empty folder to write to, got {str(path)!r}, {got}; name another")
    if not final.parent.is_dir():
        raise ValueError(f"expected an existing folder for {str(path)!r}, got none, create {str(final.parent)!r} first")
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    try:
        with writing(path, temporary):
            temporary.mkdir()
            yield temporary
            os.replace(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def writing(path: str | os.PathLike[str], *temporary: Path) -> Iterator[None]:
    """Convert a failed write of `path`, or of `temporary` paths in its place, inside the block to a `WriteError`,
    whatever the writer. Errors over other files and broken pipes pass unchanged."""
    mine = {"None", str(path), *map(str, temporary)}
    try:
        yield
    except (WriteError, BrokenPipeError):
        raise
    except OSError as error:
        if str(error.filename) not in mine:
            raise
        raise WriteError(path, error.strerror or str(error), error.errno) from error
    except Exception as error:  # compiled writers report the system's error in words only
        match = re.search(r"\(os error (\d+)\)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise WriteError(path, os.strerror(number), number) from error


class WriteError(OSError):
    """A file that could not be written, as a sentence with the system's reason; `number` is the system's error number."""

    def __init__(self, path: str | os.PathLike[str], reason: str, number: int | None):
        super().__init__(f"expected to write {str(path)!r}, got {reason!r}, make room or write somewhere else")
        self.errno = number


def append_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Append lines, without line ends, to a log, all of them or none; no other process may write to it. On a
    `WriteError` the log has the same content as before, so that no later line follows a part of a line."""
    rest = memoryview("".join(f"{line}\n" for line in lines).encode())
    with writing(path), open(path, "ab", buffering=0) as handle:
        length = handle.tell()
        try:
            while rest:  # a disk that becomes full accepts some of the bytes first
                rest = rest[handle.write(rest) :]
        except OSError:
            with suppress(OSError):  # a device cannot be truncated
                handle.truncate(length)
            raise


def whole_lines(path: str | os.PathLike[str]) -> list[str]:
    """Return a log's lines, [] without a file; a last line without an end, of a killed writer, is removed."""
    path = Path(path)
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="\n") as handle:
        try:
            *lines, rest = handle.read().split("\n")  # splitlines would also split within JSON strings
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: expected UTF-8 text, got something else ({error.reason}), move it away"
            ) from error
    if rest:
        write_text_atomic(path, "".join(f"{line}\n" for line in lines))
    return lines


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a folder, made where it is missing, to this process until the block ends. The lock is the system's, on the
    file `lock` in it, so it ends with the process in every case."""
    import fcntl

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder / LOCK):
        handle = open(folder / LOCK, "a+", encoding="utf-8")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            raise ValueError(
                f"expected a folder that no other run is writing to, got {str(folder)!r}, which process "
                f"{handle.read() or 'unknown'} holds; wait for its end or choose another"
            ) from error
        with writing(folder / LOCK):
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
        yield


def destination(path: str | os.PathLike[str]) -> Path:
    final = Path(path).resolve()
    if final.is_dir():
        raise ValueError(f"expected a file name to write to, got the folder {str(path)!r}, name a file inside it")
    if final.exists() and not final.is_file():
        raise ValueError(f"expected a file to write to, got the device {str(path)!r}, name a file")
    if not final.parent.is_dir():
        raise ValueError(f"expected an existing folder for {str(path)!r}, got none, create {str(final.parent)!r} first")
    return final


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text to a file atomically: a reader sees the old content or the new content."""
    with replacing(path) as temporary, open(temporary, "x", encoding="utf-8", newline="\n") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def write_json_atomic(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as indented JSON to a file atomically. NaN and Inf, which JSON lacks, are refused."""
    write_text_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def file_digest(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def encode_image(picture: Any, kind: str, **settings: Any) -> bytes:
    """Encode a `PIL.Image` as a "PNG" or "GIF" file in memory; `settings` are arguments of `PIL.Image.save`."""
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, **settings)
    return buffer.getvalue()

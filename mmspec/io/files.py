"""Output files that are either complete or absent, logs that grow line by line, and folders that one run has to itself."""

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
    """Yields a temporary path in the folder of `path`; moves it onto `path` on success and deletes it on any error.

    Works with every writer that takes a path (safetensors, PIL, matplotlib). The suffix of `path` is kept.
    Raises ValueError when the folder does not exist or `path` is a folder or a device, and WriteError where `path`
    cannot be written.
    """
    final = destination(path)
    # not tempfile: its files are readable by their owner only, and a rename would keep that
    temporary = final.with_name(f".{final.stem}.{secrets.token_hex(4)}{final.suffix}")
    try:
        with writing(path, temporary):
            yield temporary
            os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; move it to `path` on success and delete it on any error.

    Args:
        path: The folder to write, which may exist as long as it is empty.

    Raises:
        ValueError: `path` exists and is not an empty folder, or the folder around it does not exist.
        WriteError: The folder cannot be written.
    """
    final = Path(path).absolute()
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        got = "one with files in it" if final.is_dir() else "a file"
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
    """Makes `WriteError` of what a failed write of `path` raises inside, by whichever writer.

    temporary: paths that stand for `path` inside. Errors over other files pass as they are, as do readers that went away.
    """
    mine = {"None", str(path), *map(str, temporary)}
    try:
        yield
    except (WriteError, BrokenPipeError):
        raise
    except OSError as error:
        if str(error.filename) not in mine:
            raise
        raise WriteError(path, error.strerror or str(error), error.errno) from error
    except Exception as error:  # compiled writers tell the system's error in words only
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise WriteError(path, os.strerror(number), number) from error


class WriteError(OSError):
    """A file that could not be written: one sentence with its name and the system's reason."""

    def __init__(self, path: str | os.PathLike[str], reason: str, number: int | None):
        super().__init__(f"expected to write {str(path)!r}, got {reason!r}, make room or write somewhere else")
        self.errno = number


def append_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Add lines to a log, all of them or none.

    Args:
        path: the log; it is made where there is none. No other process may write to it.
        lines: the lines without their ends.

    Raises:
        WriteError: the log is then as it was, so that later lines do not follow a part of a line.
    """
    rest = memoryview("".join(f"{line}\n" for line in lines).encode())
    with writing(path), open(path, "ab", buffering=0) as handle:
        length = handle.tell()
        try:
            while rest:  # a disk that fills up takes a part of the bytes first
                rest = rest[handle.write(rest) :]
        except OSError:
            with suppress(OSError):  # a device has no length
                handle.truncate(length)
            raise


def whole_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a log, none where there is no file. One without an end, cut off by a kill, is taken off the file too."""
    path = Path(path)
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="\n") as handle:
        try:
            *lines, rest = handle.read().split("\n")  # splitlines would split within JSON strings, too
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: expected UTF-8 text, got something else ({error.reason}), move it away"
            ) from error
    if rest:
        write_text_atomic(path, "".join(f"{line}\n" for line in lines))
    return lines


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps a folder, made where there is none, to this process until the block ends.

    The lock is the system's, on the file `lock` inside: it goes with the process, however that ends.
    Raises ValueError where another process has it.
    """
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
            raise ValueError(f"expected a folder that no other run is writing to, got {str(folder)!r}, which process "
                             f"{handle.read() or 'unknown'} holds; wait for its end or choose another") from error  # fmt: skip
        with writing(folder / LOCK):
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
        yield


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


def file_digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 digest of a file as hexadecimal digits."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def encode_image(picture: Any, kind: str, **settings: Any) -> bytes:
    """A `PIL.Image` as the bytes of a file, in memory.   kind: "PNG", "GIF".   settings: of `PIL.Image.save`."""
    held = io.BytesIO()
    picture.save(held, format=kind, **settings)
    return held.getvalue()

"""Uploaded pictures: their form, their folder, their size on the disk, and the gate before any decoder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.io.images import ImageError, open_image
from mmspec.web.limits import Limits, RefusedRequest

if TYPE_CHECKING:
    from PIL.Image import Image


FIELD = "files"  # the field of the form that holds the file
LONGEST_FILE_NAME = 100  # bytes, the ending included
LONGEST_ENDING = 10
PLAIN = " ._-+()"  # characters of a name beside letters and digits
NO_FORM = "upload: expected a form with one file, got something else, use the page or gradio_client"


def file_of_form(content_type: str, body: bytes) -> tuple[str, bytes]:
    """Read the only file of a multipart/form-data body, whose boundary the content type names; return a safe form of
    its name, and its content. A damaged form is a RefusedRequest."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary or not boundary.isascii():
        raise RefusedRequest(NO_FORM)
    start, end = f"--{boundary}\r\n".encode(), f"\r\n--{boundary}".encode()
    top = body.find(b"\r\n\r\n")
    stop = body.find(end, top + 2) if top > 0 else -1
    if not body.startswith(start) or stop < 0:
        raise RefusedRequest(NO_FORM)
    if body[stop + len(end) : stop + len(end) + 2] != b"--":
        raise RefusedRequest("upload: expected one file a request, got more, upload one after the other")
    part = HeaderParser().parsestr(body[len(start) : top].decode("utf-8", "replace"))
    field, name = part.get_param("name", header="content-disposition"), part.get_filename()
    if field != FIELD or not name:
        raise RefusedRequest("upload: expected a file with a name, got none, choose a file")
    return safe_name(name), body[top + 4 : stop]


def form_of_file(name: str, content: bytes) -> tuple[str, list[bytes]]:
    """Return the header content-type and the body in parts of a form with a file, whose name `safe_name` returned."""
    boundary = secrets.token_hex(16)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{FIELD}"; filename="{name}"\r\n\r\n'
    return f"multipart/form-data; boundary={boundary}", [head.encode(), content, f"\r\n--{boundary}--\r\n".encode()]


def safe_name(name: str) -> str:
    """Return a name without a path, quotes, control characters or reserved characters, of at most 100 bytes."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(each if each.isalnum() or each in PLAIN else "_" for each in last).strip(" .")
    stem, dot, ending = plain.rpartition(".")
    if not dot or len(ending.encode()) > LONGEST_ENDING:
        stem, dot, ending = plain, "", ""
    room = LONGEST_FILE_NAME - len((dot + ending).encode())
    stem = stem.encode()[:room].decode("utf-8", "ignore")
    return (stem or "picture") + dot + ending


NO_PICTURE = "picture: expected a PNG, JPEG or WebP file, got none, upload one or pick an example"
NO_UPLOAD = "expected an uploaded file, got a path or an address, upload the picture"
BLOCK = 4096  # bytes of the smallest file or folder on a disk


def open_uploaded(value: Any, uploads: Path, limits: Limits) -> Image:
    """Open an uploaded picture as RGB of 8 bits; `value` is the path, or gradio's object with the field `path`. It must
    lie in the folder and pass the gate. The message of the RefusedRequest does not name it."""
    path = value.get("path") if isinstance(value, dict) else value
    if not isinstance(path, str):
        raise RefusedRequest(NO_PICTURE)
    if not is_uploaded(path, uploads):
        raise RefusedRequest(f"picture: {NO_UPLOAD}")
    try:
        return open_image(path, max_pixels=limits.pixels, max_bytes=limits.file_bytes)
    except ImageError as error:
        raise RefusedRequest(str(error).replace(path, "picture", 1)) from None


def is_uploaded(path: Any, uploads: Path) -> bool:
    """Return whether a path names a file in the folder of uploads, and not an address, a folder or a link to elsewhere."""
    if not isinstance(path, str) or "://" in path:
        return False
    try:
        place = Path(path).resolve()
        return place.is_relative_to(uploads.resolve()) and place.is_file()
    except (OSError, ValueError):
        return False


def stored_bytes(uploads: Path) -> int:
    """Return the bytes of a folder on the disk; files and folders take at least a block each."""
    return sum(max(size, BLOCK) for size in _sizes(uploads))


def _sizes(uploads: Path) -> Iterator[int]:
    for folder, folders, files in os.walk(uploads):
        yield from (0 for _ in folders)
        for name in files:
            try:
                yield os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # deleted in the meantime
                continue

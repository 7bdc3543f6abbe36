"""Forms that upload a file: one file a form, and a name that is safe on every disk."""

from __future__ import annotations

import secrets
from email.message import Message
from email.parser import HeaderParser

from mmspec.web.limits import Refused

FIELD = "files"  # the field of the form that holds the file
LONGEST_NAME = 100  # bytes, the ending included
LONGEST_ENDING = 10
PLAIN = " ._-+()"  # characters of a name that stand beside letters and digits
NO_FORM = "upload: expected a form with one file, got something else, use the page or gradio_client"


def file_of_form(content_type: str, body: bytes) -> tuple[str, bytes]:
    """Read the one file of a form.

    Args:
        content_type: The header of the request, with the form's boundary.
        body: The form, multipart/form-data.

    Returns:
        A safe form of the file's name, and the file's content.

    Raises:
        Refused: The form is damaged, has no file, has more than one, or the file has no name.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary or not boundary.isascii():
        raise Refused(NO_FORM)
    start, end = f"--{boundary}\r\n".encode(), f"\r\n--{boundary}".encode()
    top = body.find(b"\r\n\r\n")
    stop = body.find(end, top + 2) if top > 0 else -1
    if not body.startswith(start) or stop < 0:
        raise Refused(NO_FORM)
    if body[stop + len(end) : stop + len(end) + 2] != b"--":
        raise Refused("upload: expected one file a request, got more, upload one after the other")
    part = HeaderParser().parsestr(body[len(start) : top].decode("utf-8", "replace"))
    field, name = part.get_param("name", header="content-disposition"), part.get_filename()
    if field != FIELD or not name:
        raise Refused("upload: expected a file with a name, got none, choose a file")
    return safe_name(name), body[top + 4 : stop]


def form_of_file(name: str, content: bytes) -> tuple[str, list[bytes]]:
    """Write a form with one file.

    Args:
        name: A name that `safe_name` returned.
        content: The content of the file.

    Returns:
        The header content-type, and the body in parts.
    """
    boundary = secrets.token_hex(16)
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{FIELD}"; filename="{name}"\r\n\r\n'
    return f"multipart/form-data; boundary={boundary}", [head.encode(), content, f"\r\n--{boundary}--\r\n".encode()]


def safe_name(name: str) -> str:
    """Return a name without a path, quotes, control characters or reserved characters, of at most 100 bytes."""
    last = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(each if each.isalnum() or each in PLAIN else "_" for each in last).strip(" .")
    stem, dot, ending = kept.rpartition(".")
    if not dot or len(ending.encode()) > LONGEST_ENDING:
        stem, dot, ending = kept, "", ""
    room = LONGEST_NAME - len((dot + ending).encode())
    stem = stem.encode()[:room].decode("utf-8", "ignore")
    return (stem or "picture") + dot + ending

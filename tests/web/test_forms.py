"""A form uploads one file, under a name that is safe on every disk."""

from __future__ import annotations

import pytest

from mmspec.web.limits import RefusedRequest
from mmspec.web.uploads import LONGEST_FILE_NAME, file_of_form, form_of_file, safe_name

TYPE = "multipart/form-data; boundary=B"
HEAD = b'Content-Disposition: form-data; name="files"; filename="a.png"'


def form(*heads: bytes, content: bytes = b"\x89PNG\r\n\r\n--b") -> bytes:
    return b"".join(b"--B\r\n" + head + b"\r\n\r\n" + content + b"\r\n" for head in heads) + b"--B--\r\n"


@pytest.mark.parametrize("content", [b"", b"x", b"\r\n", b"\r\n--", b"\r\n\r\n--C--\r\n", bytes(range(256)) * 9])
def test_a_file_comes_out_as_it_went_in(content: bytes) -> None:
    assert file_of_form(TYPE, form(HEAD, content=content)) == ("a.png", content)
    content_type, parts = form_of_file("ä b.png", content)
    assert file_of_form(content_type, b"".join(parts)) == ("ä b.png", content)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"xyz",
        b"--B--\r\n",
        b"--B\r\n\r\n",
        form(HEAD)[:40],
        form(HEAD)[:-8],
        b"\r\n" + form(HEAD),
        form(HEAD).replace(b"\r\n\r\n", b"\n\n"),
    ],
)
def test_a_damaged_form_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedRequest, match=r"upload: expected .*, got "):
        file_of_form(TYPE, body)


@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=",
                                          "multipart/form-data; boundary=\xe4", "multipart/mixed; boundary=B"])  # fmt: skip
def test_invalid_forms_are_refused(content_type: str) -> None:
    with pytest.raises(RefusedRequest, match="upload: expected a form"):
        file_of_form(content_type, form(HEAD))


@pytest.mark.parametrize("count", [2, 50])
def test_a_form_with_several_files_is_refused(count: int) -> None:
    with pytest.raises(RefusedRequest, match="upload: expected one file a request, got more"):
        file_of_form(TYPE, form(*[HEAD] * count))


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"a.png", b""),
        HEAD.replace(b'; filename="a.png"', b""),
        HEAD.replace(b'"files"', b'"x"'),
        b"Content-Type: image/png",
        b"",
    ],
)
def test_a_file_without_a_name_is_refused(head: bytes) -> None:
    with pytest.raises(RefusedRequest, match=r"upload: expected .*, got "):
        file_of_form(TYPE, form(head))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.png", "a.png"), ('a"b.png', "a_b.png"), ("a\0b.png", "a_b.png"), ("a;b\r\n.png", "a_b__.png"),
     ("../../etc/passwd", "passwd"), ("C:\\a\\b.png", "b.png"), ("..", "picture"), ("/", "picture"), (".png", "png"),
     ("my picture (1).png", "my picture (1).png"), ("日本.png", "日本.png"), ("\ud800.png", "_.png")],
)  # fmt: skip
def test_a_name_is_made_safe(name: str, expected: str) -> None:
    assert safe_name(name) == expected


@pytest.mark.parametrize("name", ["x" * 300 + ".png", "日" * 300 + ".png", "x." + "y" * 300, "." * 300])
def test_a_name_is_cut_to_the_length_limit_of_a_disk(name: str) -> None:
    found = safe_name(name)
    assert 0 < len(found.encode()) <= LONGEST_FILE_NAME and found.endswith(".png") == name.endswith(".png")

"""A visitor's picture passes the package's gate, and is decoded by nothing before it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from mmspec.web.limits import Limits, RefusedRequest
from mmspec.web.uploads import open_uploaded
from tests.web.hostile import SVG, png_bomb


def png(size: tuple[int, int] = (12, 10)) -> bytes:
    held = BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(held, "PNG")
    return held.getvalue()


def uploaded(folder: Path, body: bytes, name: str = "a.png") -> str:
    (folder / name).write_bytes(body)
    return str(folder / name)


def test_a_picture_comes_in_as_rgb(tmp_path: Path) -> None:
    picture = open_uploaded(uploaded(tmp_path, png()), tmp_path, Limits())
    assert (picture.mode, picture.size) == ("RGB", (12, 10))


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("bomb.png", png_bomb(), "expected at most 40000000 pixels, got 30000x30000"),
        ("a.svg", SVG, "expected PNG, JPEG or WebP"),
        ("svg.png", SVG, "expected PNG, JPEG or WebP"),
        ("half.png", png((200, 200))[:90], "expected a complete image"),
        ("empty.png", b"", "expected an image, got an empty file"),
        ("large.png", png() + b"\0" * 4000, "expected at most 3000 bytes"),
    ],
)
def test_a_hostile_file_reports_one_error_without_its_path(tmp_path: Path, name: str, body: bytes, said: str) -> None:
    limits = Limits(file_bytes=3000 if name == "large.png" else 20_000_000)
    with pytest.raises(RefusedRequest) as caught:
        open_uploaded(uploaded(tmp_path, body, name), tmp_path, limits)
    assert said in str(caught.value) and str(caught.value).startswith("picture: ")
    assert str(tmp_path) not in str(caught.value) and "\n" not in str(caught.value)


def test_the_bomb_is_small_and_would_be_large() -> None:
    assert len(png_bomb()) < 200_000


@pytest.mark.parametrize("path", ["/etc/passwd", "UPLOADS/../outside.png", "UPLOADS/link.png"])
def test_a_file_outside_the_uploads_is_refused(tmp_path: Path, path: str) -> None:
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    (tmp_path / "outside.png").write_bytes(png())
    (uploads / "link.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(RefusedRequest, match="expected an uploaded file, got a path or an address"):
        open_uploaded(path.replace("UPLOADS", str(uploads)), uploads, Limits())


@pytest.mark.parametrize("path", [None, 7, ["a.png"], b"a.png"])
def test_a_missing_upload_is_requested(tmp_path: Path, path: object) -> None:
    with pytest.raises(RefusedRequest, match="expected a PNG, JPEG or WebP file, got none"):
        open_uploaded(path, tmp_path, Limits())

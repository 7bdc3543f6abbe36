"""The image gate admits ordinary pictures as upright RGB and refuses everything else with one sentence."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy
import pytest
from PIL import Image

from mmspec.io.images import ImageError, open_image


def picture(width: int = 24, height: int = 16, mode: str = "RGB") -> Image.Image:
    """A smooth colour ramp, so that JPEG keeps it close."""
    rows, columns = numpy.mgrid[0:height, 0:width]
    ramp = numpy.stack([rows * 8, columns * 8, rows * 4 + columns * 4], -1).astype("uint8")
    return Image.fromarray(ramp).convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(width: int, height: int, *, depth: int = 8, colour: int = 2, body: bytes = b"") -> bytes:
    """A PNG that declares what it likes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def refused(source: object, **limits: int) -> str:
    """The one sentence with which `source` is refused, and nothing else on the screen."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError) as caught:
            open_image(source, **limits)
    message = str(caught.value)
    assert "expected" in message and "\n" not in message
    return message


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})])
def test_ordinary_files_open_from_path_and_bytes(tmp_path: Path, kind: str, options: dict) -> None:
    path = tmp_path / "picture"
    path.write_bytes(encoded(picture(), kind, **options))
    for source in (path, str(path), path.read_bytes()):
        image = open_image(source)
        assert (type(image), image.mode, image.size, image.info) == (Image.Image, "RGB", (24, 16), {})
        difference = numpy.asarray(image).astype(int) - numpy.asarray(picture())
        assert abs(difference).max() <= (12 if kind == "JPEG" else 0)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_modes_without_alpha_convert(mode: str) -> None:
    image = picture(mode=mode)
    assert numpy.array_equal(open_image(encoded(image, "PNG")), image.convert("RGB"))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("alpha", [0, 255])
def test_alpha_is_laid_on_white(kind: str, alpha: int) -> None:
    image = Image.new("RGBA", (8, 8), (200, 0, 0, alpha))
    result = open_image(encoded(image, kind, lossless=True, exact=True))
    assert result.getpixel((3, 3)) == ((200, 0, 0) if alpha else (255, 255, 255))


@pytest.mark.parametrize("mode", ["LA", "P", "L", "RGB"])
def test_every_kind_of_transparency_counts(mode: str) -> None:
    if mode == "LA":
        data = encoded(Image.new("LA", (8, 8), (0, 0)), "PNG")
    else:
        data = encoded(Image.new(mode, (8, 8), 0), "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert open_image(data).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_exif_rotation_is_applied(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(encoded(picture(), kind, exif=exif)).size == (16, 24)


def test_a_second_picture_inside_a_jpeg_is_ignored() -> None:
    data = encoded(picture(), "MPO", save_all=True, append_images=[picture()])
    assert open_image(data).size == (24, 16)


def test_a_jpeg_in_grey_opens() -> None:
    assert open_image(encoded(picture(mode="L"), "JPEG")).mode == "RGB"


def test_cmyk_is_converted() -> None:
    data = encoded(picture(mode="CMYK"), "JPEG")
    assert numpy.array_equal(open_image(data), Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("colour", [0, 2, 4, 6], ids=["grey", "rgb", "grey+alpha", "rgba"])
def test_of_sixteen_bits_the_upper_eight_remain(colour: int) -> None:
    """Every channel is 0x8001, and alpha is laid on white."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    body = (b"\0" + b"\x80\x01" * 8 * channels) * 8
    expected = 0x80 if channels % 2 else round(0x80 * 128 / 255 + 255 * 127 / 255)
    found = numpy.asarray(open_image(png(8, 8, depth=16, colour=colour, body=body))).astype(int)
    assert found.shape == (8, 8, 3) and abs(found - expected).max() <= 1


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {}), ("GIF", {})])
def test_animations_are_refused(kind: str, options: dict) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    message = refused(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert ("GIF" if kind == "GIF" else "3 frames") in message


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 3)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_tiny_images_are_refused(kind: str, size: tuple[int, int]) -> None:
    assert f"{size[0]}x{size[1]}" in refused(encoded(picture(*size), kind))


def test_the_smallest_admitted_size_opens() -> None:
    assert open_image(encoded(picture(4, 4), "PNG")).size == (4, 4)


@pytest.mark.parametrize("side", [6400, 10_000, 15_000, 2**31 - 1])
def test_a_huge_png_is_refused_by_its_header(side: int) -> None:
    assert f"{side}x{side}" in refused(png(side, side))


def test_a_huge_webp_is_refused_by_its_header() -> None:
    data = bytearray(encoded(picture(mode="RGBA"), "WEBP", exif=Image.Exif().tobytes() + b"x"))
    assert data[12:16] == b"VP8X"
    data[24:30] = b"\xff\xff\xff" * 2
    assert "16777216x16777216" in refused(bytes(data))


def test_a_huge_jpeg_is_refused_by_its_header() -> None:
    data = bytearray(encoded(picture(), "JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = b"\xff\xff\xff\xff"
    assert "65535x65535" in refused(bytes(data))


def test_limits_can_be_set(tmp_path: Path) -> None:
    data = encoded(picture(), "PNG")
    assert open_image(data, max_pixels=24 * 16, max_bytes=len(data)).size == (24, 16)
    assert "383 pixels" in refused(data, max_pixels=24 * 16 - 1)
    assert "max_bytes" in refused(data, max_bytes=len(data) - 1)
    (tmp_path / "a.png").write_bytes(data)
    assert "a.png" in refused(tmp_path / "a.png", max_bytes=len(data) - 1)
    with pytest.raises(ValueError, match="expected max_pixels of at least 1"):
        open_image(data, max_pixels=0)


def test_a_file_over_the_byte_limit_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.png"
    with open(path, "wb") as handle:
        handle.truncate(1 << 40)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("the file was read"))
    assert str(1 << 40) in refused(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.9])
def test_truncated_files_are_refused(kind: str, kept: float) -> None:
    noise = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (64, 64, 3), "uint8"))
    data = encoded(noise, kind)
    refused(data[: int(len(data) * kept)])


def test_a_flipped_byte_in_a_png_is_found() -> None:
    noise = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (64, 64, 3), "uint8"))
    data = bytearray(encoded(noise, "PNG"))
    data[len(data) // 2] ^= 0x10
    assert "damaged" in refused(bytes(data))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_damaged_images_raise_only_image_error(kind: str) -> None:
    clean = encoded(picture(), kind, exif=Image.Exif())
    generator = numpy.random.default_rng(0)
    for _ in range(150):
        data = bytearray(clean)
        for position in generator.integers(0, len(data), 3):
            data[position] = generator.integers(0, 256)
        try:
            assert open_image(bytes(data)).mode == "RGB"
        except ImageError as error:
            assert "\n" not in str(error)


def test_invalid_image_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not an image")
    os.mkfifo(tmp_path / "pipe.png")
    assert "no such file" in refused(tmp_path / "missing.png")
    assert "a folder" in refused(tmp_path)
    assert "empty" in refused(tmp_path / "empty.png")
    assert "text.png: expected PNG, JPEG or WebP" in refused(tmp_path / "text.png")
    assert "not a file" in refused(tmp_path / "pipe.png")
    refused("nul\0byte.png")
    refused(None)


@pytest.mark.parametrize(("kind", "got"), [("BMP", "BMP"), ("TIFF", "TIFF"), ("PDF", "PDF"), ("AVIF", "AVIF")])
def test_other_formats_are_named(kind: str, got: str) -> None:
    try:
        data = encoded(picture(), kind)
    except (OSError, KeyError):
        pytest.skip(f"Pillow was built without {kind}")
    assert got in refused(data)

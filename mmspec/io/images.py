"""The only entry for image files and for pictures that a caller has opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from einops import rearrange
from PIL import ExifTags, Image, ImageOps
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile
from torch import Tensor

MAX_PIXELS = 40_000_000
MAX_BYTES = 20_000_000
# image processors mistake an array side of 1 or 3 for channels
MIN_SIDE = 4
# processors scale the shorter side to a fixed length: a strip of 4 x 10,000,000 pixels would need gigabytes
MAX_ASPECT = 200
UPRIGHT = 1  # the EXIF orientation of an upright image

_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"}
_WIDE_MODES = {"I", "I;16", "I;16B", "I;16L", "I;16N", "F"}  # Pillow itself would clip their values to white
_BRIGHTEST = 255  # of 8 bits
# a damaged file makes a decoder raise any of these
_DECODE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError, MemoryError)


class ImageError(ValueError):
    """An image was refused, by a sentence with the file, the expected and the actual input, and the remedy."""


def open_image(
    source: str | os.PathLike[str] | bytes, *, max_pixels: int = MAX_PIXELS, max_bytes: int = MAX_BYTES
) -> Image.Image:
    """Read a still image, a path or the bytes of a file, as an 8-bit RGB `PIL.Image` without metadata, upright and with
    alpha on white. It is PNG, JPEG or WebP with a single frame, at least 4x4 pixels, and a longer side of at most 200
    times the shorter. The limits are checked before anything is decoded. Of 16 bits per channel the upper eight remain.
    CMYK is converted by Pillow, without a colour profile."""
    for label, limit in (("max_pixels", max_pixels), ("max_bytes", max_bytes)):
        if limit < 1:
            raise ValueError(f"expected {label} of at least 1, got {limit}, pass a positive limit")
    name, data = _read(source, int(max_bytes))
    kind = _sniff(name, data)
    if kind is WebPImageFile:
        # the constructor of WebP allocates the canvas
        _check_size(name, _webp_size(name, data), max_pixels)
    try:
        image = kind(BytesIO(data))
    except _DECODE_ERRORS as error:
        raise _damaged(name, error) from error
    _check_size(name, image.size, max_pixels)
    if getattr(image, "is_animated", False):
        frames = getattr(image, "n_frames", "several")
        raise ImageError(f"{name}: expected a still image, got an animation of {frames} frames, save one frame of it")
    _check_mode(name, image.mode)
    return _decode(name, data, image)


def check_images(pictures: object, name: str = "images") -> list[Image.Image]:
    """Check the pictures of a request as `check_image` does: a sequence, or an array or a tensor [N, H, W, C] or [N, C,
    H, W]. The error names the argument `name`."""
    is_stack = isinstance(pictures, np.ndarray | Tensor)
    if is_stack and pictures.ndim != 4:
        raise ValueError(
            f"{name}: expected a list of pictures or a stack [N, H, W, C], got the shape "
            f"{list(pictures.shape)}; write {name}=[picture]"
        )
    if not is_stack and (isinstance(pictures, str | bytes) or not isinstance(pictures, Sequence)):
        raise ValueError(f"{name}: expected a list of pictures, got {type(pictures).__name__}; write {name}=[picture]")
    return [check_image(picture, name) for picture in pictures]


def check_image(picture: object, name: str = "images") -> Image.Image:
    """Check a picture that a caller has opened, and return it in 8-bit RGB, upright and with alpha on white. Processors
    would fetch addresses, read paths, scale floats twice, clip 16-bit pictures to white, and ignore the rotation of
    photographs. It is a PIL image; or an array or a tensor, [H, W], [H, W, C] or [C, H, W] with C from 1 to 4, also as
    a batch of 1. Its values are those of 8 bits in any type, 0..1 in floats, 16 bits in uint16, or truth values."""
    if isinstance(picture, np.ndarray | Tensor):
        picture = _picture_of(picture, name)
    elif not isinstance(picture, Image.Image):
        got = repr(picture) if isinstance(picture, str | os.PathLike) else type(picture).__name__
        raise ImageError(
            f"{name}: expected PIL images, arrays or tensors, got {got[:120]}; open a file with open_image of "
            "mmspec.io.images"
        )
    _check_size(name, picture.size, MAX_PIXELS, "shrink it")
    _check_mode(name, picture.mode)
    try:
        return upright_rgb(picture, name)
    except ImageError:
        raise
    except _DECODE_ERRORS as error:
        raise _damaged(name, error) from error


def upright_rgb(picture: Image.Image, name: str = "images", *, is_deep: bool = False) -> Image.Image:
    """Return the picture in 8-bit RGB, rotated by its EXIF orientation, with alpha on white; itself if nothing changes.
    `is_deep` says that a wide mode holds 16 bits, as a file's header does; otherwise its values have to show it."""
    if picture.mode == "RGB" and not picture.has_transparency_data and _orientation(picture) == UPRIGHT:
        return picture
    upright = ImageOps.exif_transpose(picture)
    if upright.mode in _WIDE_MODES:
        values = np.asarray(upright)
        grey = (values >> 8).astype(np.uint8) if is_deep else _eight_bits(values, name)
        clear = upright.info.get("transparency")  # the value of transparent pixels
        return Image.fromarray(grey if clear is None else np.where(values == clear, _BRIGHTEST, grey)).convert("RGB")
    if upright.has_transparency_data:
        layer = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return upright.convert("RGB")


def _picture_of(array: np.ndarray | Tensor, name: str) -> Image.Image:
    """Return an array as a PIL image of the mode L, LA, RGB or RGBA. Its layout is read before its values."""
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    shape = tuple(array.shape)
    is_numeric = not array.is_complex() if isinstance(array, Tensor) else array.dtype.kind in "buif"
    is_picture = len(shape) == 2 or (len(shape) == 3 and (1 <= shape[0] <= 4 or 1 <= shape[2] <= 4))
    if not is_numeric or not is_picture:
        raise ImageError(
            f"{name}: expected arrays of numbers in the shape [H, W, C] or [C, H, W], got {array.dtype} in the "
            f"shape {list(shape)}; pass one picture per item, or open a file with open_image"
        )
    if len(shape) == 3 and max(shape[0], shape[2]) <= 4:
        raise ImageError(
            f"{name}: expected an array with distinct rows and channels, got the shape {list(shape)}, which "
            "is ambiguous; pass a PIL image"
        )
    has_channels_first = len(shape) == 3 and shape[2] > 4
    height, width = shape[1:] if has_channels_first else shape[:2]
    _check_size(name, (width, height), MAX_PIXELS, "shrink it")
    if isinstance(array, Tensor):
        try:
            array = array.detach().cpu()
            array = (array.float() if array.is_floating_point() else array).numpy()
        except (RuntimeError, TypeError) as error:  # such as a meta or a sparse tensor
            raise ImageError(
                f"{name}: expected a dense tensor with data, got {array.layout} on {array.device}; convert it"
            ) from error
    if np.ma.is_masked(array):
        raise ImageError(f"{name}: expected arrays without a mask, got a masked array; fill it")
    array = np.asarray(array)
    if has_channels_first:
        array = rearrange(array, "c h w -> h w c")
    if array.ndim == 3 and array.shape[2] in (2, 4) and array.dtype.kind != "b":
        if array[..., -1].max() == 1 < array[..., :-1].max():
            raise ImageError(
                f"{name}: expected colours and alpha of one range, got colours up to "
                f"{array[..., :-1].max():g} and alpha up to 1; scale the alpha"
            )
    levels = _eight_bits(array, name)
    return Image.fromarray(np.ascontiguousarray(levels[..., 0] if levels.shape[2:] == (1,) else levels))


def _eight_bits(values: np.ndarray, name: str) -> np.ndarray:
    """Return the values of a picture, of any range that they show beyond doubt, as uint8."""
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * np.uint8(_BRIGHTEST)
    low, high = values.min(), values.max()
    is_float, is_deep = values.dtype.kind == "f", values.dtype.itemsize == 2 and values.dtype.kind == "u"
    if low >= 0 and high <= 1 and (is_float or high == 0):
        return np.rint(values.astype(np.float32) * _BRIGHTEST).astype(np.uint8)
    if is_deep and high > _BRIGHTEST:
        return (values >> 8).astype(np.uint8)
    if low >= 0 and 1 < high <= _BRIGHTEST and not is_deep and not (is_float and (values % 1).any()):
        return values.astype(np.uint8)
    raise ImageError(
        f"{name}: expected pixels from 0 to 255, floats from 0 to 1 or uint16 of 16 bits, got {values.dtype} "
        f"from {low:g} to {high:g}; convert them to uint8"
    )


def _orientation(picture: Image.Image) -> int:
    return picture.getexif().get(ExifTags.Base.Orientation, UPRIGHT)


def _read(source: str | os.PathLike[str] | bytes, max_bytes: int) -> tuple[str, bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        name, data = "image bytes", bytes(source[: max_bytes + 1])
        size = memoryview(source).nbytes
    else:
        name = str(source)
        try:
            status = os.stat(source)
            if not stat.S_ISREG(status.st_mode):
                kind = "a folder" if stat.S_ISDIR(status.st_mode) else "something that is not a file"
                raise ImageError(f"{name}: expected an image file, got {kind}, give the path of one image")
            size = status.st_size
            data = b"" if size > max_bytes else Path(source).read_bytes()
        except FileNotFoundError as error:
            raise ImageError(f"{name}: expected an image file, got no such file, check the path") from error
        except ImageError:
            raise
        except (OSError, ValueError, TypeError) as error:
            raise ImageError(f"{name}: expected a readable image file, got {error}, check the path") from error
    if size > max_bytes:
        raise ImageError(f"{name}: expected at most {max_bytes} bytes, got {size}, shrink the image or raise max_bytes")
    if not data:
        raise ImageError(f"{name}: expected an image, got an empty file, export the image again")
    return name, data


def _sniff(name: str, data: bytes) -> type[ImageFile]:
    # not Image.open, which warns on large headers and takes a phone's JPEG with an embedded picture for an animation
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return PngImageFile
    if data.startswith(b"\xff\xd8"):
        return JpegImageFile
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return WebPImageFile
    formats = {b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"%PDF": "PDF"}
    got = next((label for magic, label in formats.items() if data.startswith(magic)), None)
    if data[4:8] == b"ftyp":
        got = "HEIC, AVIF or a video"
    got = got or "another or a damaged format"
    raise ImageError(f"{name}: expected PNG, JPEG or WebP, got {got}, save it as one of the three")


def _webp_size(name: str, data: bytes) -> tuple[int, int]:
    def little(start: int, stop: int) -> int:
        return int.from_bytes(data[start:stop], "little")

    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return little(24, 27) + 1, little(27, 30) + 1
    if chunk == b"VP8 " and len(data) >= 30:
        return little(26, 28) & 0x3FFF, little(28, 30) & 0x3FFF
    if chunk == b"VP8L" and len(data) >= 25:
        bits = little(21, 25)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    raise _damaged(name, "an unreadable WebP header")


def _check_size(
    name: str, size: tuple[int, int], max_pixels: int, remedy: str = "shrink it or raise max_pixels"
) -> None:
    width, height = size
    got = f"got {width}x{height}"
    if width * height > max_pixels:
        raise ImageError(f"{name}: expected at most {int(max_pixels)} pixels, {got}, {remedy}")
    if min(size) < MIN_SIDE:
        raise ImageError(f"{name}: expected at least {MIN_SIDE}x{MIN_SIDE} pixels, {got}, use a larger image")
    if max(size) > MAX_ASPECT * min(size):
        raise ImageError(
            f"{name}: expected a longer side of at most {MAX_ASPECT} times the shorter, {got}, cut the image into parts"
        )


def _check_mode(name: str, mode: str) -> None:
    if mode not in _MODES | _WIDE_MODES:
        raise ImageError(
            f"{name}: expected an RGB, grey or CMYK image, got colour mode {mode}, convert it to RGB first"
        )


def _decode(name: str, data: bytes, image: ImageFile) -> Image.Image:
    try:
        if isinstance(image, PngImageFile):
            # loading skips the checksums, and verifying consumes the file
            PngImageFile(BytesIO(data)).verify()
        image.load()
        result = upright_rgb(image, name, is_deep=True).convert("RGB")  # a plain image instead of a file's class
    except _DECODE_ERRORS as error:
        raise _damaged(name, error) from error
    result.info = {}
    return result


def _damaged(name: str, reason: object) -> ImageError:
    detail = " ".join(str(reason).split()) or type(reason).__name__
    return ImageError(f"{name}: expected a complete image, got a damaged or truncated file ({detail}), export it again")

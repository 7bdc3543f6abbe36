"""Pictures that a caller has opened reach processors as the gate's own files do: upright 8-bit RGB, or refused."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import mmspec
from mmspec.io.images import MAX_ASPECT, ImageError, check_image, open_image
from mmspec.vlm.training.examples import Example, encode
from mmspec.zoo.world.pixels import image_pixels
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import sample_scene


def scene() -> Image.Image:
    return render(sample_scene(3))


def sixteen_bits() -> Image.Image:
    return Image.fromarray(np.asarray(scene().convert("L")).astype(np.uint16) * 257)


def see_through() -> Image.Image:
    picture = scene().convert("RGBA")
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return picture


def rotated() -> Image.Image:
    """A photograph that lies on its side in the file, still in its file's class."""
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = 6
    scene().resize((96, 64)).save(file, "PNG", exif=exif)
    return Image.open(BytesIO(file.getvalue()))


OPENED = {"alpha": see_through, "rotated": rotated, "palette": lambda: scene().convert("P"), "plain": scene}


@pytest.mark.parametrize("name", OPENED)
def test_an_opened_picture_matches_its_file(name: str) -> None:
    picture, file = OPENED[name](), BytesIO()
    picture.save(file, "PNG", exif=picture.getexif())
    found = check_image(picture)
    assert found.mode == "RGB" and np.array_equal(np.asarray(found), np.asarray(open_image(file.getvalue())))
    assert (found is picture) == (name == "plain")


def test_processors_and_clip_see_the_upright_picture() -> None:
    _, processor = mmspec.zoo.load("vlm")
    for make in (rotated, see_through):
        upright = check_image(make())
        one, two = (encode(processor, [Example("a", "?", (p,))])["pixel_values"] for p in (make(), upright))
        assert torch.equal(one, two) and torch.equal(image_pixels([make()]), image_pixels([upright]))
    assert check_image(rotated()).size == (64, 96)


@pytest.mark.parametrize("mode", ("I;16", "I", "F", "CMYK", "La"))
def test_modes_without_a_sure_meaning_in_rgb_are_refused(mode: str) -> None:
    picture = sixteen_bits()
    if mode == "La":
        picture = see_through().convert("LA").convert("La")
    elif mode == "CMYK":
        picture = scene().convert("CMYK")
    elif mode != "I;16":
        picture = Image.fromarray(np.asarray(picture).astype(np.int32 if mode == "I" else np.float32))
    assert picture.mode == mode
    _, processor = mmspec.zoo.load("vlm")
    for call in (
        lambda: check_image(picture),
        lambda: encode(processor, [Example("a", "?", (picture,))]),
        lambda: image_pixels([picture]),
    ):
        with pytest.raises(ImageError, match=f"images: expected an RGB or grey image, got colour mode {mode}"):
            call()


def test_a_strip_is_refused_before_a_processor_scales_its_shorter_side() -> None:
    file = BytesIO()
    Image.new("RGB", (4, 4 * MAX_ASPECT + 1)).save(file, "PNG")
    for call in (lambda: open_image(file.getvalue()), lambda: check_image(Image.open(BytesIO(file.getvalue())))):
        with pytest.raises(ImageError, match="longer side of at most 200 times the shorter, got 4x801"):
            call()
    assert check_image(Image.new("RGB", (4, 4 * MAX_ASPECT))).size == (4, 800)


def test_a_cut_file_that_a_caller_has_opened_is_refused() -> None:
    file = BytesIO()
    see_through().save(file, "PNG")
    with pytest.raises(ImageError, match="images: expected a complete image"):
        check_image(Image.open(BytesIO(file.getvalue()[: len(file.getvalue()) // 2])))


@pytest.mark.parametrize("shape", ((4, 9, 3), (3, 9, 4), (4, 4, 4)), ids=str)
def test_an_array_that_reads_both_ways_is_refused(shape: tuple[int, ...]) -> None:
    """Processors take the first side of four rows for channels."""
    with pytest.raises(ImageError, match="images: expected an array with distinct rows and channels"):
        check_image(np.zeros(shape, np.uint8))
    assert check_image(np.zeros((5, 9, 3), np.uint8)).shape == (5, 9, 3)

"""Pictures that a caller has opened reach processors as the gate's own files do: upright 8-bit RGB, or refused."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import mmspec
from mmspec.io.images import MAX_ASPECT, ImageError, check_image, check_images, open_image
from mmspec.video.rewards.scores import to_bytes
from mmspec.vlm.training.examples import Example, encode
from mmspec.zoo.world.pixels import image_pixels
from mmspec.zoo.world.render import render
from mmspec.zoo.world.scene import sample_scene


def scene() -> Image.Image:
    return render(sample_scene(3))


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


def deep() -> Image.Image:
    return Image.fromarray(np.asarray(scene().convert("L")).astype(np.uint16) * 257)


OPENED = {
    "16 bits": deep,
    "alpha": see_through,
    "rotated": rotated,
    "palette": lambda: scene().convert("P"),
    "plain": scene,
}


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


PIXELS = np.asarray(scene())
GREY = np.asarray(scene().convert("L"))
DEEP = GREY.astype(np.uint16) * 257

SAME = {
    "floats of 0..1": PIXELS / 255,
    "float16": (PIXELS / 255).astype(np.float16),
    "whole floats of 0..255": PIXELS.astype(np.float32),
    "16 bits": PIXELS.astype(np.uint16) * 257,
    "16 bits, shifted, big-endian": (PIXELS.astype(np.uint16) << 8).astype(">u2"),
    "int32": PIXELS.astype(np.int32),
    "int64": PIXELS.astype(np.int64),
    "channels first": PIXELS.transpose(2, 0, 1),
    "a batch of one": PIXELS[None],
    "a batch of one, channels first": PIXELS.transpose(2, 0, 1)[None] / 255,
    "opaque": np.dstack([PIXELS, np.full_like(GREY, 255)]),
    "opaque floats": np.dstack([PIXELS / 255, np.ones(GREY.shape)]),
    "reversed memory": PIXELS[::-1].copy()[::-1],
    "tensor": torch.tensor(PIXELS),
    "tensor of floats": torch.tensor(PIXELS).permute(2, 0, 1) / 255,
    "bfloat16": (torch.tensor(PIXELS) / 255).bfloat16(),
    "bfloat16 of 0..255": torch.tensor(PIXELS).bfloat16(),
    "torch.uint16": (torch.tensor(PIXELS).int() * 257).to(torch.uint16),
    "with a gradient": (torch.tensor(PIXELS) / 255).requires_grad_(),
}
SAME_GREY = {
    "grey": GREY,
    "grey with a channel": GREY[..., None],
    "a channel of grey": GREY[None],
    "grey floats": GREY / 255,
    "I;16": Image.fromarray(DEEP),
    "I": Image.fromarray(GREY.astype(np.int32)),
    "F": Image.fromarray((GREY / 255).astype(np.float32)),
    "F of 0..255": Image.fromarray(GREY.astype(np.float32)),
}


@pytest.mark.parametrize("name", SAME | SAME_GREY)
def test_every_type_shows_the_picture_of_eight_bits(name: str) -> None:
    found = np.asarray(check_image((SAME | SAME_GREY)[name]))
    assert np.array_equal(found, PIXELS if name in SAME else np.dstack([GREY] * 3))


@pytest.mark.parametrize("name", ("alpha", "palette"))
def test_alpha_and_palettes_of_arrays_are_those_of_pil(name: str) -> None:
    layer = OPENED[name]().convert("RGBA")
    for array in (np.asarray(layer), np.asarray(layer) / 255, np.asarray(layer).transpose(2, 0, 1)):
        assert np.array_equal(np.asarray(check_image(array)), np.asarray(check_image(layer)))
    two = layer.convert("LA")
    assert np.array_equal(np.asarray(check_image(np.asarray(two))), np.asarray(check_image(two)))


def test_truth_values_and_cmyk_are_those_of_pil() -> None:
    for array, picture in (
        (GREY > 99, Image.fromarray(GREY > 99)),
        (torch.tensor(GREY > 99), Image.fromarray(GREY > 99)),
    ):
        assert np.array_equal(np.asarray(check_image(array)), np.asarray(picture.convert("RGB")))
    ink = scene().convert("CMYK")
    assert np.array_equal(np.asarray(check_image(ink)), np.asarray(ink.convert("RGB")))


DOUBTFUL = {
    "floats of -1..1": PIXELS / 127.5 - 1,
    "NaN": np.where(PIXELS > 200, np.nan, PIXELS / 255),
    "infinity": np.where(PIXELS > 200, np.inf, PIXELS / 255),
    "fractions above 1": PIXELS * 0.999,
    "overshoot": PIXELS / 250,
    "dark 16 bits": DEEP // 300,
    "16 bits in int32": DEEP.astype(np.int32),
    "0 and 1 as numbers": (GREY > 99).astype(np.int64),
    "int8": PIXELS.astype(np.int8),
    "I of 16 bits": Image.fromarray(DEEP.astype(np.int32)),
    "alpha of 0..1": np.dstack([PIXELS, np.ones(GREY.shape)]),
    "masked": np.ma.masked_greater(PIXELS, 200),
    "complex": torch.tensor(PIXELS / 255).to(torch.complex64),
    "meta": torch.zeros(8, 8, 3, device="meta"),
    "La": see_through().convert("LA").convert("La"),
    "no channels": np.zeros((8, 8, 0)),
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_picture_whose_range_is_in_doubt_is_refused(name: str) -> None:
    _, processor = mmspec.zoo.load("vlm")
    for call in (check_image, lambda p: encode(processor, [Example("a", "?", (p,))]), lambda p: image_pixels([p])):
        with pytest.raises(ImageError, match="^images: expected [^\n]*got "):
            call(DOUBTFUL[name])


def test_a_stack_is_a_list_of_its_pictures_and_a_single_picture_is_no_list() -> None:
    for stack in (np.stack([PIXELS] * 2), torch.tensor(np.stack([PIXELS] * 2)).permute(0, 3, 1, 2) / 255):
        assert [np.array_equal(np.asarray(image), PIXELS) for image in check_images(stack)] == [True, True]
    for one in (PIXELS, GREY, torch.tensor(PIXELS), scene(), "a.png", None):
        with pytest.raises(ValueError, match=r"images: expected a list of pictures.*write images=\[picture\]"):
            check_images(one)


def test_sessions_and_features_read_floats_as_bytes() -> None:
    model, processor = mmspec.zoo.load("vlm")
    stacks = (np.stack([PIXELS]), np.stack([PIXELS]) / 255, torch.tensor(PIXELS).permute(2, 0, 1)[None] / 255)
    texts = {mmspec.Session(model, processor, max_new_tokens=8).ask("Describe this.", images=stack) for stack in stacks}
    assert len(texts) == 1
    tensor = torch.tensor(np.stack([PIXELS] * 2)).permute(0, 3, 1, 2)
    assert torch.equal(image_pixels(tensor), image_pixels(tensor / 255))
    assert torch.equal(image_pixels([PIXELS]), image_pixels([PIXELS / 255]))


def test_frames_of_bytes_in_floats_are_refused() -> None:
    frames = torch.tensor(np.stack([PIXELS] * 2)).permute(0, 3, 1, 2)
    assert torch.equal(to_bytes(frames / 127.5 - 1), frames)
    with pytest.raises(ValueError, match="frames: expected float in -1..1 or uint8, got floats from"):
        to_bytes(frames.float())


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
    assert check_image(np.zeros((5, 9, 3), np.uint8)).size == (9, 5)

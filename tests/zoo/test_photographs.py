"""Photographs go through every picture path: the gate, the processors and captions of the zoo, CLIP and the autoencoders."""

from __future__ import annotations

from functools import cache
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import mmspec
from mmspec.io.images import check_image, open_image
from mmspec.vlm.drafters import PromptLookup
from mmspec.vlm.training.examples import Example, encode
from mmspec.zoo.world.pixels import to_pixels
from tests.zoo.photographs import NAMES, file_of, on_white, photograph, shrunk, turned

pytestmark = pytest.mark.whole

SMALL = 120  # the longer side in tests whose size does not matter
SHAPES = ((4, 4), (7, 5), (33, 300), (400, 9), (64, 64), (640, 427))  # width, height
BOUND = {"vq": 15.0, "kl": 13.0}  # decibels; the least that were measured are 15.5 and 13.4
SMOOTH = ("chelsea.png", "hubble_deep_field.jpg", "moon.png")  # of one colour for the most part
VLMS = {"vlm": ("vlm/eagle", "vlm/dspark"), "vlm/hybrid": ("vlm/hybrid/dflash", "vlm/hybrid/mtp")}


def alpha_of(picture: Image.Image) -> np.ndarray:
    """A ramp from clear to opaque, uint8 [H, W]."""
    return np.asarray(Image.linear_gradient("L").resize(picture.size))


def reference(picture: Image.Image, mode: str) -> tuple[Image.Image, np.ndarray]:
    """The picture in another mode, and the RGB pixels that it shows, uint8 [H, W, 3], worked out with numpy."""
    pixels, grey = np.asarray(picture), np.asarray(picture.convert("L"))
    stacked = np.repeat(grey[..., None], 3, -1)
    if mode == "RGBA":
        return Image.fromarray(np.dstack([pixels, alpha_of(picture)])), on_white(pixels, alpha_of(picture))
    if mode == "LA":
        return Image.fromarray(np.dstack([grey, alpha_of(picture)])), on_white(stacked, alpha_of(picture))
    if mode == "L":
        return Image.fromarray(grey), stacked
    if mode == "P":
        changed = picture.quantize(64)
        return changed, np.asarray(changed.getpalette()).reshape(-1, 3)[np.asarray(changed)].astype(np.uint8)
    if mode == "1":
        changed = picture.convert("1")
        return changed, np.repeat(np.asarray(changed)[..., None], 3, -1).astype(np.uint8) * 255
    return picture, pixels


@pytest.mark.parametrize("mode", ("RGB", "RGBA", "L", "LA", "P", "1"))
@pytest.mark.parametrize("name", NAMES)
def test_the_gate_shows_every_mode_as_it_is(name: str, mode: str) -> None:
    picture, pixels = reference(shrunk(photograph(name), SMALL), mode)
    found = open_image(file_of(picture, "PNG"))
    assert found.mode == "RGB" and found.size == picture.size and found.info == {}
    difference = np.abs(np.asarray(found).astype(int) - pixels)
    assert difference.max() <= (1 if mode in ("RGBA", "LA") else 0)  # two ways to round an alpha
    assert np.array_equal(np.asarray(check_image(picture)), np.asarray(found))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind, options", (("PNG", {}), ("JPEG", {"quality": 90}), ("WEBP", {"lossless": True})))
def test_the_gate_turns_a_photograph_as_its_exif_says(kind: str, options: dict, orientation: int) -> None:
    picture = shrunk(photograph("china.jpg"), SMALL)
    plain = np.asarray(open_image(file_of(picture, kind, **options)))
    found = np.asarray(open_image(file_of(picture, kind, orientation, **options)))
    assert np.array_equal(found, turned(plain, orientation))
    if kind != "JPEG":
        assert np.array_equal(plain, np.asarray(picture))


@pytest.mark.parametrize(
    "options", ({"progressive": True}, {"subsampling": 0}, {"quality": 30}, {"optimize": True}), ids=str
)
@pytest.mark.parametrize("kind", ("JPEG", "WEBP"))
def test_the_gate_decodes_lossy_files_as_pillow_does(kind: str, options: dict) -> None:
    picture = shrunk(photograph("flower.jpg"), SMALL)
    for mode in ("RGB", "L"):
        content = file_of(picture.convert(mode), kind, **options)
        found = np.asarray(open_image(content))
        assert np.array_equal(found, np.asarray(Image.open(BytesIO(content)).convert("RGB")))
        assert np.abs(found.astype(int) - np.asarray(picture.convert(mode).convert("RGB"))).mean() < 12


def test_the_gate_converts_cmyk_and_sixteen_bits() -> None:
    picture = shrunk(photograph("flower.jpg"), SMALL)
    grey = picture.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    for shown in (check_image(deep), open_image(file_of(deep, "PNG"))):
        assert np.array_equal(np.asarray(shown), np.asarray(grey.convert("RGB")))
    content = file_of(picture.convert("CMYK"), "JPEG")
    for shown in (check_image(Image.open(BytesIO(content))), open_image(content)):
        assert np.abs(np.asarray(shown).astype(int) - np.asarray(picture)).mean() < 12


def pixels_of(processor: object, picture: object) -> Tensor:
    """What the processor makes of a picture by itself; four rows of an array would be taken for channels."""
    picture = picture.copy()  # writable
    return processor.image_processor(images=[picture], return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("target", VLMS)
def test_a_processor_gives_finite_pixels_of_every_shape(target: str) -> None:
    model, processor = mmspec.zoo.load(target)
    for number, shape in enumerate(SHAPES):
        picture = photograph(NAMES[number]).resize(shape)
        made = encode(processor, [Example("a", "Describe the picture.", (picture,))])
        again = encode(processor, [Example("a", "Describe the picture.", (Image.fromarray(np.asarray(picture)),))])
        expected = pixels_of(processor, np.asarray(picture) if min(shape) > 4 else picture)
        pixels = made["pixel_values"]
        assert torch.equal(pixels, again["pixel_values"]) and torch.equal(pixels, expected)
        assert bool(pixels.isfinite().all()) and float(pixels.abs().max()) <= 1.0 + 1e-6
        with torch.no_grad():
            assert bool(model(**made, logits_to_keep=1).logits.isfinite().all())


@pytest.mark.parametrize("target", VLMS)
def test_a_processor_sees_a_rotated_file_upright(target: str) -> None:
    _, processor = mmspec.zoo.load(target)
    picture = shrunk(photograph("coffee.png"), SMALL)
    opened = Image.open(BytesIO(file_of(picture, "PNG", 6)))
    upright = Image.fromarray(turned(np.asarray(picture), 6))
    one, two = (encode(processor, [Example("a", "?", (p,))])["pixel_values"] for p in (opened, upright))
    assert torch.equal(one, two)


@cache
def captions(target: str) -> tuple[dict, Tensor]:
    """Requests about four photographs as one batch, and the answers of `transformers.generate`."""
    model, processor = mmspec.zoo.load(target)
    shapes = ((96, 96), (200, 60), (40, 120), (320, 240))
    pictures = [photograph(name).resize(size) for name, size in zip(NAMES[-4:], shapes, strict=True)]
    inputs = encode(processor, [Example(str(n), "Describe the picture.", (p,)) for n, p in enumerate(pictures)])
    return inputs, model.generate(**inputs, max_new_tokens=48, do_sample=False)


@pytest.mark.parametrize("target", VLMS)
@pytest.mark.parametrize("number", (None, 0, 1, "lookup"))
def test_captions_of_photographs_are_those_of_transformers(target: str, number: int | str | None) -> None:
    inputs, expected = captions(target)
    drafter = PromptLookup() if number == "lookup" else None
    if isinstance(number, int):
        drafter = mmspec.zoo.load(VLMS[target][number])
    out = mmspec.generate(mmspec.zoo.load(target)[0], drafter=drafter, max_new_tokens=48, do_sample=False, **inputs)
    assert torch.equal(out, expected)


def test_clip_features_are_unit_vectors_independent_of_batch_and_format() -> None:
    clip = mmspec.zoo.load("clip")
    pictures = [photograph(name) for name in NAMES]
    features = clip.encode_images(pictures)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(len(NAMES)))
    for number in (0, 4, 10):
        alone = clip.encode_images([pictures[number]])
        torch.testing.assert_close(alone[0], features[number], atol=1e-5, rtol=1e-4)
    sized = [picture.resize((64, 64), Image.Resampling.BOX) for picture in pictures]
    as_tensor = clip.encode_images(torch.from_numpy(np.stack([np.asarray(picture) for picture in sized])))
    torch.testing.assert_close(as_tensor, features, atol=1e-5, rtol=1e-4)
    grey = photograph("camera.png")
    torch.testing.assert_close(clip.encode_images([grey.convert("L")]), clip.encode_images([grey]))
    assert float((features @ features.T - torch.eye(len(NAMES))).max()) < 0.9999  # photographs differ


def decibels(found: Tensor, pixels: Tensor) -> float:
    """The peak signal-to-noise ratio of pixels in -1..1."""
    return float(10 * torch.log10(4 / ((found - pixels) ** 2).mean()))


@pytest.mark.parametrize("size", ((64, 64), (96, 48), (32, 128)))  # width, height
@pytest.mark.parametrize("autoencoder", ("vq", "kl"))
def test_autoencoders_give_photographs_back(autoencoder: str, size: tuple[int, int]) -> None:
    """They learnt drawn shapes, and a photograph comes back blurred, but nearer than its mean colour."""
    model = mmspec.zoo.load("t2i").model.vq if autoencoder == "vq" else mmspec.zoo.load("kl")
    arrays = np.stack([np.asarray(photograph(name).resize(size, Image.Resampling.LANCZOS)) for name in NAMES])
    pixels = to_pixels(arrays)
    with torch.no_grad():
        if autoencoder == "vq":
            rows, codes = model.encode(pixels)
            found = model.decode(rows)
            assert torch.equal(model.encode(pixels)[1], codes) and 0 <= int(codes.min()) <= int(codes.max())
            assert int(codes.max()) < len(model.codebook()) and len(codes.unique()) > 32
        else:
            latent = model.encode(pixels).latent_dist.mean
            found = model.decode(latent).sample
            assert torch.equal(model.encode(pixels).latent_dist.mean, latent)
    assert found.shape == pixels.shape and bool(found.isfinite().all())
    flat = pixels.mean((2, 3), keepdim=True).expand_as(pixels)
    for number, name in enumerate(NAMES):
        quality = decibels(found[number], pixels[number])
        assert quality > BOUND[autoencoder], name
        if name not in SMOOTH:
            assert quality > decibels(flat[number], pixels[number]), name

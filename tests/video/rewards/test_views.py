"""Squares of frames are those the published preparations cut, and several of them show what one leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from mmspec.video.rewards.scores import MEAN, STD, Views, normalised, to_bytes

BICUBIC = transforms.InterpolationMode.BICUBIC


def pictures(height: int, width: int, count: int = 2) -> Tensor:
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


@pytest.mark.parametrize("size", [(60, 104), (104, 60), (33, 50), (224, 224), (300, 299), (480, 832)], ids=str)
def test_one_crop_is_the_published_preparation(size: tuple[int, int]) -> None:
    frames = pictures(*size)
    published = transforms.Compose([transforms.Resize(224, BICUBIC), transforms.CenterCrop(224)])
    wanted = torch.stack([pil_to_tensor(published(to_pil_image(frame))) for frame in frames])
    squares = Views()(frames)
    assert squares.shape == (2, 1, 3, 224, 224) and squares.dtype == torch.uint8
    levels = (squares[:, 0].int() - wanted.int()).abs()  # Pillow rounds its weights otherwise; noise is the worst case
    assert levels.max() <= 2 and (levels > 1).float().mean() < 1e-4
    tensor = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    torch.testing.assert_close(normalised(wanted)[0], tensor(published(to_pil_image(frames[0]))))


def ramp(height: int, width: int) -> Tensor:
    """A frame whose colour tells how far along its longer side a pixel lies."""
    along = torch.linspace(-1, 1, max(height, width))
    return (along if width > height else along[:, None]).expand(1, 3, height, width)


@pytest.mark.parametrize("size", [(480, 832), (832, 480)], ids=str)
def test_one_crop_leaves_the_sides_out_and_covering_crops_show_all(size: tuple[int, int]) -> None:
    def seen(crops: int | str) -> tuple[float, float, int]:
        squares = Views(crops=crops)(to_bytes(ramp(*size)))
        return squares.min().item() / 255, squares.max().item() / 255, squares.shape[1]

    low, high, count = seen(1)
    assert count == 1 and abs((high - low) - 480 / 832) < 0.02 and abs(low + high - 1) < 0.02
    for crops, number in (("cover", 2), (2, 2), (3, 3)):
        low, high, count = seen(crops)
        assert (count, round(low, 2), round(high, 2)) == (number, 0.0, 1.0)


def test_crops_lie_evenly_and_without_a_gap() -> None:
    squares = Views(100, crops="cover")(to_bytes(ramp(100, 950)))[0, :, 0, 0].float() / 255
    assert squares.shape[0] == 10
    assert all(after[0] <= before[-1] + 0.01 for before, after in zip(squares, squares[1:], strict=False))
    starts = squares[:, 0]
    assert (starts.diff() - starts.diff().mean()).abs().max() < 0.005


@pytest.mark.parametrize("size", [(60, 104), (104, 60), (50, 50)], ids=str)
def test_a_letterbox_holds_the_whole_frame_with_black_beside_it(size: tuple[int, int]) -> None:
    frames = pictures(*size, count=1)
    (square,) = Views(64, crops="letterbox")(frames)[0]
    height, width = (round(side * 64 / max(size)) for side in size)
    picture = to_pil_image(frames[0]).resize((width, height), Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", (64, 64))
    canvas.paste(picture, ((64 - width) // 2, (64 - height) // 2))
    assert np.abs(np.asarray(canvas).astype(int) - square.permute(1, 2, 0).numpy()).max() <= 1


def test_a_frames_score_is_made_of_its_squares() -> None:
    scores = torch.tensor([0.0, 4.0, 1.0, 5.0, 2.0, 6.0])
    assert torch.equal(Views(crops=2).joined(scores, 3), torch.tensor([2.0, 3.0, 4.0]))
    assert torch.equal(Views(crops=2, reduction="min").joined(scores, 3), torch.tensor([0.0, 1.0, 2.0]))
    squares = Views(8, crops=2)(pictures(8, 20, count=3))
    assert torch.equal(squares.flatten(0, 1).unflatten(0, (3, 2)), squares)


def test_floats_become_the_bytes_of_a_file_and_bytes_stay() -> None:
    given = torch.tensor([-1.5, -1.0, 0.0, 1.0, 2.0])[:, None, None, None].expand(5, 3, 2, 2)
    assert to_bytes(given)[:, 0, 0, 0].tolist() == [0, 0, 128, 255, 255]
    frames = pictures(4, 4)
    assert torch.equal(to_bytes(frames), frames) and torch.equal(to_bytes(frames.float() / 127.5 - 1), frames)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Views(crops=0), "crops: expected at least 1, got 0"),
        (lambda: Views(crops="all"), "got 'all'"),
        (lambda: Views(crops=True), "got True"),
        (lambda: Views(0), "size: expected at least 1"),
        (lambda: Views(reduction="max"), "reduction: expected 'min' or 'mean', got 'max'"),
        (lambda: to_bytes(torch.zeros(3, 8, 8)), r"expected \[F, 3, H, W\], got \(3, 8, 8\)"),
        (lambda: to_bytes(torch.zeros(1, 3, 5, 8, 8)), r"got \(1, 3, 5, 8, 8\)"),
        (
            lambda: to_bytes(torch.zeros(2, 3, 8, 8, dtype=torch.int64)),
            "expected float in -1..1 or uint8, got torch.int64",
        ),
        (lambda: to_bytes(torch.full((1, 3, 8, 8), float("nan"))), "expected finite pixels"),
    ],
)
def test_invalid_frames_and_settings_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()

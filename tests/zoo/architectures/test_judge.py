"""What the judge reads, and how much of what was asked for."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from mmspec.zoo.architectures.object_detector import DetectedObject, DetectorNetwork, ObjectDetector, objects_of
from mmspec.zoo.world.pixels import sample_image_scenes


def test_readings_of_one_object_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.full((1, 17, 8, 8), -9.0)
    logits[0, 1], logits[0, 9] = 1.0, 1.0  # everything reads as a circle of the first color
    for cell, value in {(2, 2): 4.0, (2, 3): 3.0, (4, 2): 2.0, (2, 6): 1.0}.items():
        logits[0, 0, cell[0], cell[1]] = value
    reader = DetectorNetwork()
    monkeypatch.setattr(reader, "forward", lambda pixels: logits)
    (found,) = ObjectDetector(reader).read([Image.new("RGB", (64, 64))])
    assert [(entry.row, entry.column) for entry in found] == [(2, 2), (2, 6)]


def test_agreement_counts_each_found_object_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, images = ObjectDetector(DetectorNetwork()), [Image.new("RGB", (64, 64))] * 2
    seen = [
        [DetectedObject("star", "red", 1, 1)],
        [DetectedObject("ring", "blue", 2, 2), DetectedObject("heart", "cyan", 5, 5)],
    ]
    monkeypatch.setattr(ObjectDetector, "read", lambda self, images: seen)
    asked = ["a red star above a red star", "a small cyan heart and a blue ring on an olive background"]
    assert judge.agreement(images, asked) == pytest.approx(3 / 4)
    picture = sample_image_scenes(3, 1)[0]
    assert objects_of(picture) == [(item.shape, item.color) for item in picture.items]
    with pytest.raises(ValueError, match="one entry per image"):
        judge.agreement(images, asked[:1])
    with pytest.raises(ValueError, match="name an object"):
        judge.agreement(images, ["", "a star"])

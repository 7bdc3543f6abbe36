"""Whether what is drawn is what was asked for."""

from __future__ import annotations

import pytest
from PIL import Image

from mmspec import zoo
from mmspec.zoo.architectures.object_detector import ObjectDetector
from mmspec.zoo.training.continuous.recipe import class_recognition, prompt_recognition
from mmspec.zoo.world.image import CLASSES, HELD_OUT, class_image_scene, render_image_scene, sample_image_scene


@pytest.fixture(scope="module")
def judge() -> ObjectDetector:
    return zoo.load("image_judge")


def drawn(label: int, index: int) -> Image.Image:
    return Image.fromarray(render_image_scene(class_image_scene(label, HELD_OUT + (1 << 21) + index)))


def test_the_right_objects_are_recognised_and_others_are_not(judge: ObjectDetector) -> None:
    seeds = []

    def right(labels, given):
        seeds.extend(given)
        return [drawn(label, seed % 1000) for label, seed in zip(labels, given, strict=True)]

    found = class_recognition(right, judge, count=70, batch=32)
    assert found["recognised"] > 0.9 and found["recognised_real"] > 0.9 and len(set(seeds)) == 70
    wrong = class_recognition(
        lambda labels, given: [drawn((label + 9) % CLASSES, 0) for label in labels], judge, count=32
    )
    assert wrong["recognised"] < 0.1 and wrong["recognised_real"] > 0.9
    half = class_recognition(
        lambda labels, given: [drawn(label if label % 2 else label ^ 8, 0) for label in labels], judge, count=64
    )
    assert 0.4 < half["recognised"] < 0.6


def test_prompts_are_judged_by_the_objects_they_name(judge: ObjectDetector) -> None:
    said = []

    def other(prompts, given):
        said.extend(prompts)
        return [Image.fromarray(render_image_scene(sample_image_scene(5 + i))) for i in range(len(prompts))]

    found = prompt_recognition(other, judge, count=32)
    assert all(isinstance(one, str) for one in said) and found["recognised"] < 0.2 < 0.9 < found["recognised_real"]

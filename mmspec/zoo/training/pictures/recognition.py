"""Whether what a model draws is what it was asked for: the judge's share of objects found, beside that in real renders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL import Image

from ...architectures.judge import ImageJudge
from ...world.pictures import CLASSES, HELD_OUT, Picture, class_names, class_picture, sample_picture
from ...world.prompts import prompt_of
from .picture_batches import picture_arrays

FIRST = HELD_OUT + (1 << 20)  # apart from the pictures that other figures are of
Draw = Callable[[Sequence[Any], list[int]], Sequence[Image.Image]]


def class_recognition(draw: Draw, judge: ImageJudge, count: int = 256, batch: int = 64) -> dict[str, float]:
    """Of pictures drawn for the 64 classes in turn, the share in which the judge finds an object of the class, and of real
    ones of the same classes.

    draw(labels, seeds): the pictures, such as `lambda labels, seeds: pipe(labels, seed=seeds).images`.
    """
    labels = [index % CLASSES for index in range(count)]
    names = class_names()
    return _shares(draw, judge, labels, [names[label] for label in labels],
                   [class_picture(label, FIRST + index) for index, label in enumerate(labels)], batch)  # fmt: skip


def prompt_recognition(draw: Draw, judge: ImageJudge, count: int = 256, batch: int = 64) -> dict[str, float]:
    """The same for held-out prompts: the share of the objects they name, and of those in the pictures they were made for."""
    pictures = [sample_picture(FIRST + index) for index in range(count)]
    prompts = [prompt_of(one, 0) for one in pictures]
    return _shares(draw, judge, prompts, prompts, pictures, batch)


def _shares(
    draw: Draw, judge: ImageJudge, prompts: Sequence[Any], asked: Sequence[str], real: Sequence[Picture], batch: int
) -> dict[str, float]:
    drawn: list[Image.Image] = []
    for first in range(0, len(prompts), batch):
        part = prompts[first : first + batch]
        drawn += draw(part, [(FIRST + first + i) & (2**31 - 1) for i in range(len(part))])
    return {"recognised": round(judge.agreement(drawn, asked), 4),
            "recognised_real": round(judge.agreement(torch.from_numpy(picture_arrays(real)), asked), 4)}  # fmt: skip

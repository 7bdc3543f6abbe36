"""What benches ask image models for: held-out prompts, and the text that scores an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmspec.zoo.world.phrases import with_article
from mmspec.zoo.world.pictures import HELD_OUT, class_names, sample_picture
from mmspec.zoo.world.prompts import prompt_of

if TYPE_CHECKING:
    from mmspec.evaluate.image.config import ImageSetting
    from mmspec.evaluate.image.resources import ImageResources

FIRST = HELD_OUT + (1 << 18)  # behind the pictures that trainers measure on
STEP = 1 << 16  # seeds between the prompts of one bench seed and the next


@dataclass(frozen=True, slots=True)
class Request:
    """given: what the pipeline takes.   text: the same in words, for CLIP and the judge."""

    given: str | int
    text: str


def requests_of(model: str, count: int, seed: int = 0) -> list[Request]:
    """`count` prompts for the zoo's "t2i", or classes in turn for its "c2i"; those of different seeds are disjoint."""
    if model == "c2i":
        names = class_names()
        return [Request(i % len(names), with_article(names[i % len(names)])) for i in range(count)]
    prompts = [prompt_of(sample_picture(FIRST + STEP * seed + i), 0) for i in range(count)]
    return [Request(prompt, prompt) for prompt in prompts]


def labels_of(texts: Sequence[str], classes: int, names: Sequence[str] = ()) -> list[int]:
    """Class labels from numbers or names ("7", "red circle", "a red circle").   Raises ValueError for others."""
    found = {name: label for label, name in enumerate(names)}
    labels = []
    for text in texts:
        plain = " ".join(text.lower().split())
        bare = plain.removeprefix("a ").removeprefix("an ")
        label = int(plain) if plain.isascii() and plain.isdigit() else found.get(bare, -1)
        if not 0 <= label < classes:
            known = f" or a name such as {names[0]!r}" if names else ""
            raise ValueError(f"PROMPT: expected a label from 0 to {classes - 1}{known}, got {text!r}, correct it")
        labels.append(label)
    return labels


def cases(resources: ImageResources, setting: ImageSetting) -> list[list[Request]]:
    """The requests of every batch of a setting."""
    return setting.batches(requests_of(setting.model, setting.prompts, setting.seed))

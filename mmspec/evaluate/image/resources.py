"""An image pipeline and what belongs to it: held-out prompts, rules, trained drafters and scorers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec import zoo
from mmspec.core.pipeline_parts import read_part
from mmspec.core.rules.base import Rule
from mmspec.evaluate.engine.config import check_choice
from mmspec.evaluate.engine.domain import Resources
from mmspec.evaluate.model_kinds import IMAGE_MODELS
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.io.checkpoints import load_model, load_part
from mmspec.io.readers import read_json
from mmspec.methods import parse
from mmspec.zoo.world.image import HELD_OUT, class_names, image_prompt, sample_image_scene
from mmspec.zoo.world.language import with_article

FIRST = HELD_OUT + (1 << 18)  # behind the pictures that trainers measure on
STEP = 1 << 16  # seeds between the prompts of one bench seed and the next


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """given: what the pipeline takes.   text: the same in words, for CLIP and the judge."""

    given: str | int
    text: str


def requests_of(model: str, count: int, seed: int = 0) -> list[GenerationRequest]:
    """`count` prompts for the zoo's "t2i", or classes in turn for its "c2i"; those of different seeds are disjoint."""
    if model == "c2i":
        names = class_names()
        return [GenerationRequest(i % len(names), with_article(names[i % len(names)])) for i in range(count)]
    prompts = [image_prompt(sample_image_scene(FIRST + STEP * seed + i), 0) for i in range(count)]
    return [GenerationRequest(prompt, prompt) for prompt in prompts]


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


def checked_captions(model: Any, prompts: Sequence[str]) -> list[str]:
    """The prompts.   Raises ValueError where the model's caption encoder knows none of their words."""
    check = getattr(getattr(model, "captions", None), "check", None)
    if check is not None:
        check(list(prompts))
    return list(prompts)


@dataclass(slots=True)
class PictureResources(Resources):
    """Resources of a domain whose output is judged as pictures."""

    def scorer(self, name: str) -> Any:
        """A scorer of the zoo, such as "clip" or "image_judge"."""
        return self.once(f"scorer {name}", lambda: zoo.load(name))


@dataclass(slots=True)
class ImageResources(PictureResources):
    """name: what tables call the model.   zoo: its name in the zoo, "" for a model from a folder."""

    pipeline: ImagePipeline
    name: str
    zoo: str = ""

    def given(self, prompts: Sequence[str]) -> list[str] | list[int]:
        """What the pipeline takes of prompts in words: labels where the model draws classes, else the words.

        Raises ValueError for a class that does not exist, and for words of which the model knows none.
        """
        if self.draws_texts:
            return checked_captions(self.pipeline.model, prompts)
        classes = self.pipeline.model.transformer.config.num_classes
        return labels_of(prompts, classes, class_names() if self.zoo else ())

    @property
    def draws_texts(self) -> bool:
        """Whether the model draws what words say, and not classes."""
        config = getattr(getattr(self.pipeline.model, "transformer", None), "config", None)
        return getattr(config, "model_type", None) != "c2i"

    @property
    def model(self) -> Any:
        """The pipeline's model."""
        return self.pipeline.model

    def part(self, name: str, source: str | None = None) -> Any:
        """What the zoo has for its model: "eagle", "low"...; or what a text names, see `MethodParts`.

        Raises ValueError where there is none.
        """
        if source is not None:
            return read_part(self.pipeline, name, source)
        if not self.zoo:
            raise ValueError(
                f"expected a model of the zoo, which {name!r} belongs to, got {self.name}, decode otherwise"
            )
        return self.once(f"part {name}", lambda: zoo.load(f"{self.zoo}/{name}"))

    def rule(self, text: str | None) -> str | Rule | None:
        """The rule of "name" or "name:setting=value,...", made once; None of None."""
        if text is None:
            return None
        return self.once(f"rule {text}", lambda: parse(text, "image", "rule", "--rule").make(self))


def zoo_resources(name: str = "t2i") -> ImageResources:
    """The zoo's text-to-image model, or its class-to-image model.   Raises ValueError for another name."""
    check_choice("--model", name, IMAGE_MODELS)
    return ImageResources(zoo.load(name), f"zoo {name}", name)


def folder_resources(folder: Path) -> ImageResources:
    """The pipeline saved in `folder`: LlamaGen as `save_pretrained` wrote it, or an image model of transformers.

    Raises ValueError where it holds neither.
    """
    from mmspec.imagegen.adapters.registry import supported
    from mmspec.imagegen.components import CONFIG

    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    asked = config.get("architectures") or []
    if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked):
        raise ValueError(f"{folder / CONFIG}: expected architectures as a list of names, got {asked!r:.60}; correct it")
    named = [family.name for family in supported() if family.name in asked]
    pipeline = _transformers(folder, named[0]) if named else _llamagen(folder)
    return ImageResources(pipeline, str(folder))


def _llamagen(folder: Path) -> ImagePipeline:
    from mmspec.imagegen.llamagen.pipeline import LlamaGenPipeline

    return LlamaGenPipeline.from_pretrained(folder)


def _transformers(folder: Path, name: str) -> ImagePipeline:
    import transformers

    from mmspec.imagegen import pipeline_for

    model = load_model(getattr(transformers, name), folder)
    try:
        processor = load_part(transformers.AutoProcessor, folder)
    except ValueError as error:
        raise ValueError(
            f"--model: expected a processor beside the model in {folder}, got none ({error}), save it"
        ) from error
    return pipeline_for(model, processor)

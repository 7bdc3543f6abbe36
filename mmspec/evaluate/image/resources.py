"""An image pipeline and what belongs to it: rules over its codebook, trained drafters, and what scores its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec import zoo
from mmspec.core.checkpoints import load_model, load_part
from mmspec.core.readers import read_json
from mmspec.core.rules.base import Rule
from mmspec.evaluate.engine.resources import Resources
from mmspec.evaluate.image.requests import labels_of
from mmspec.imagegen.pipeline import ImagePipeline
from mmspec.imagegen.rules.by_name import rule_from_name
from mmspec.zoo.world.pictures import class_names

ZOO_MODELS = ("t2i", "c2i")


@dataclass(slots=True)
class ImageResources(Resources):
    """name: what tables call the model.   zoo: its name in the zoo, "" for a model from a folder."""

    pipeline: ImagePipeline
    name: str
    zoo: str = ""

    def given(self, prompts: Sequence[str]) -> list[str] | list[int]:
        """What the pipeline takes of prompts in words: labels where the model draws classes, else the words.

        Raises ValueError for a class that does not exist, and for words of which the model knows none.
        """
        if self.draws_texts:
            check = getattr(getattr(self.pipeline.model, "captions", None), "check", None)
            if check is not None:
                check(list(prompts))
            return list(prompts)
        classes = self.pipeline.model.transformer.config.num_classes
        return labels_of(prompts, classes, class_names() if self.zoo else ())

    @property
    def draws_texts(self) -> bool:
        """Whether the model draws what words say, and not classes."""
        config = getattr(getattr(self.pipeline.model, "transformer", None), "config", None)
        return getattr(config, "model_type", None) != "c2i"

    def part(self, name: str) -> Any:
        """What the zoo has for its model: "eagle", "low"...   Raises ValueError where the model is another one."""
        if not self.zoo:
            raise ValueError(
                f"expected a model of the zoo, which {name!r} belongs to, got {self.name}, decode otherwise"
            )
        return self.once(f"part {name}", lambda: zoo.load(f"{self.zoo}/{name}"))

    def scorer(self, name: str) -> Any:
        """The zoo's "clip" or "image_judge"."""
        return self.once(f"scorer {name}", lambda: zoo.load(name))

    def rule(self, text: str | None) -> str | Rule | None:
        """The rule of "name" or "name:setting=value,...", made once; None of None."""
        if text is None:
            return None
        return self.once(f"rule {text}", lambda: rule_from_name(text, self.pipeline.model))


def zoo_resources(name: str = "t2i") -> ImageResources:
    """The zoo's text-to-image model, or its class-to-image model.   Raises ValueError for another name."""
    if name not in ZOO_MODELS:
        raise ValueError(f"--model: expected one of {', '.join(ZOO_MODELS)}, got {name!r}, pick one of these")
    return ImageResources(zoo.load(name), f"zoo {name}", name)


def folder_resources(folder: Path) -> ImageResources:
    """The pipeline saved in `folder`: LlamaGen as `save_pretrained` wrote it, or an image model of transformers.

    Raises ValueError where it holds neither.
    """
    from mmspec.imagegen.adapters.registry import supported
    from mmspec.imagegen.llamagen.store import CONFIG

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

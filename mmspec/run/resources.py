"""An opened model with its parts, each loaded once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec import zoo
from mmspec.core.drafting.named_weights import read_part
from mmspec.run.placement import Placement


@dataclass(slots=True)
class Resources:
    """Base of a domain's resources; a domain adds its model and a `name` for tables."""

    _values: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Return the cached value of `name`; the first call computes it with `make`."""
        if name not in self._values:
            self._values[name] = make()
        return self._values[name]

    def place(self, placement: Placement) -> None:
        """Move the pipeline or the model to a device and a precision, before any part is made to fit it."""
        placement.moved(getattr(self, "pipeline", None) or self.model)


@dataclass(slots=True)
class PipelineResources(Resources):
    """The resources around `pipeline`. A subclass defines `own_part`, the parts that it has itself."""

    pipeline: Any

    @property
    def model(self) -> Any:
        return self.pipeline.model

    def part(self, name: str, source: str | None = None) -> Any:
        """Return a part of a method, see `MethodParts`. `source` is the saved part that a method's text names; None for
        the resources' own part."""
        return self.own_part(name) if source is None else read_part(self.pipeline, name, source)

    def fitted(self, part: Any) -> Any:
        """Return a part on the device and in the precision of the model; parts that cannot move stay as they are."""
        if hasattr(part, "fitted"):
            return part.fitted(self.pipeline)
        if not hasattr(part, "to"):
            return part
        return part.to(device=self.model.device, dtype=getattr(self.model, "dtype", None))


def labels_of(texts: Sequence[str], classes: int, names: Sequence[str] = ()) -> list[int]:
    """Return class labels of numbers or names ("7", "red circle", "a red circle")."""
    label_of = {name: label for label, name in enumerate(names)}
    labels = []
    for text in texts:
        plain = " ".join(text.lower().split())
        bare = plain.removeprefix("a ").removeprefix("an ")
        label = int(plain) if plain.isascii() and plain.isdigit() else label_of.get(bare, -1)
        if not 0 <= label < classes:
            known = f" or a name such as {names[0]!r}" if names else ""
            raise ValueError(f"PROMPT: expected a label from 0 to {classes - 1}{known}, got {text!r}, correct it")
        labels.append(label)
    return labels


def checked_captions(model: Any, prompts: Sequence[str]) -> list[str]:
    """Return the prompts after a check that the model's caption encoder knows a word of each."""
    check = getattr(getattr(model, "captions", None), "check", None)
    if check is not None:
        check(list(prompts))
    return list(prompts)


@dataclass(slots=True)
class PictureResources(PipelineResources):
    """Resources of a domain whose output is judged as pictures."""

    def scorer(self, name: str) -> Any:
        """Return a scorer of the zoo, such as "clip" or "image_judge"."""
        return self.once(f"scorer {name}", lambda: zoo.load(name))

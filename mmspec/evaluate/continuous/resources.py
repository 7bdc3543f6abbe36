"""A model of continuous tokens and what belongs to it: the smaller one that drafts, and what scores its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmspec import zoo
from mmspec.core.pipeline_parts import read_part
from mmspec.evaluate.image.resources import PictureResources, checked_captions, labels_of
from mmspec.evaluate.model_kinds import CONTINUOUS_MODELS, MASKED, continuous_kind, in_zoo
from mmspec.zoo.world.image import class_names

if TYPE_CHECKING:
    from mmspec.imagegen.continuous.head_sampling.head import Head


@dataclass(slots=True)
class ContinuousResources(PictureResources):
    """pipeline: a `MARPipeline` or a `ContinuousARPipeline`.   kind: "masked" or "causal".   name: what tables call it.
    zoo: its name in the zoo, "" for a folder.   draft: folder of the drafter, None for the zoo's own.
    num_sampling_steps: of the heads, None for the model's own many.
    """

    pipeline: Any
    kind: str
    name: str
    zoo: str = ""
    draft: str | None = None
    num_sampling_steps: str | None = None

    @property
    def model(self) -> Any:
        """The pipeline's model."""
        return self.pipeline.model

    def part(self, name: str, source: str | None = None) -> Any:
        """ "draft", the smaller pipeline, or "head", the head as requests have it.   Raises ValueError without a drafter."""
        if source is not None:
            return read_part(self.pipeline, name, source)
        return self.head if name == "head" else self.drafter()

    @property
    def transformer(self) -> Any:
        return self.pipeline.model.transformer

    @property
    def total(self) -> int:
        """L, tokens of an image."""
        return self.transformer.config.tokens

    @property
    def classes(self) -> int:
        return self.transformer.config.class_num

    @property
    def head(self) -> Head:
        """The head as requests have it."""
        return self.transformer.head(self.num_sampling_steps)

    @property
    def head_steps(self) -> int:
        """T, denoising steps of a token."""
        return self.head.steps

    @property
    def pixels(self) -> bool:
        """Whether tokens can be decoded."""
        return self.pipeline.model.no_pixels is None

    def given(self, prompts: Sequence[str]) -> list[int] | list[str]:
        """Labels from numbers or the zoo's names; texts where the model reads captions and one of them is no label.

        Raises ValueError for a class that does not exist, and for words of which the model knows none.
        """
        try:
            return self.labels(prompts)
        except ValueError:
            if getattr(self.pipeline.model, "captions", None) is None:
                raise
        return checked_captions(self.pipeline.model, prompts)

    def labels(self, prompts: Sequence[str]) -> list[int]:
        """Labels from numbers or the zoo's names.   Raises ValueError for a class that does not exist."""
        return labels_of(prompts, self.classes, class_names() if self.classes == len(class_names()) else ())

    def drafter(self) -> Any:
        """The smaller pipeline.   Raises ValueError where there is none, and for one of another kind."""
        return self.once("drafter", self._drafter)

    def _drafter(self) -> Any:
        if self.draft is not None:
            if continuous_kind(self.draft, "--draft") != self.kind:
                raise ValueError(
                    f"--draft: expected a {self.kind} model, got {self.draft!r}, take one of the target's kind"
                )
            return pipeline_of(self.draft, "--draft")
        if not self.zoo:
            raise ValueError(f"--draft: expected the folder of a smaller model for {self.name}, got none, name one")
        return zoo_pipeline(f"{self.zoo}/draft", "--draft")

    def check_judged(self) -> None:
        """Raises ValueError for a model whose pictures the zoo's scorers cannot read."""
        if not self.pixels:
            raise ValueError(f"--model: expected an autoencoder for pictures that are judged, got {self.name} without one, "
                             "save it beside the model")  # fmt: skip
        if self.classes != len(class_names()):
            raise ValueError(f"--model: expected the zoo's {len(class_names())} classes, which its CLIP reads, got "
                             f"{self.classes}, take a suite that times requests")  # fmt: skip


def zoo_pipeline(name: str, option: str = "--model") -> Any:
    """The zoo's pipeline of that name.   Raises ValueError where it has no weights."""
    if not in_zoo(name):
        raise ValueError(f"{option}: expected weights of the zoo's {name}, got none yet, name a folder with a pipeline or "
                         f"run `mmspec zoo build {name}`")  # fmt: skip
    return zoo.load(name)


def pipeline_of(model: str, option: str = "--model") -> Any:
    """The pipeline of the zoo, or that saved in a folder.   Raises ValueError where there is none."""
    if model in CONTINUOUS_MODELS:
        return zoo_pipeline(model)
    if continuous_kind(model, option) == MASKED:
        from mmspec.imagegen.continuous.mar.pipeline import MARPipeline

        return MARPipeline.from_pretrained(model)
    from mmspec.imagegen.continuous.causal.pipeline import ContinuousARPipeline

    return ContinuousARPipeline.from_pretrained(model)


def open_continuous(model: str, draft: str | None = None, num_sampling_steps: str | None = None) -> ContinuousResources:
    """A model of the zoo or of a folder; its drafter is loaded on first use.

    Raises ValueError where there is none, and for a number of steps its head does not have.
    """
    zoo_name = model if model in CONTINUOUS_MODELS else ""
    name = f"zoo {model}" if zoo_name else model
    made = ContinuousResources(pipeline_of(model), continuous_kind(model), name, zoo_name, draft, num_sampling_steps)
    _ = made.head  # refuses steps
    return made
